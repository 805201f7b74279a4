// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/c10d_store.h"

#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

class C10dStore final : public Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::Store> store, std::string description)
      : store_(std::move(store)), description_(std::move(description)) {}

  void set(const std::string& key, const std::string& value) override {
    reach([&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    std::int64_t sum = 0;
    reach([&] { sum = store_->add(key, amount); });
    return sum;
  }

  std::string get(const std::string& key, const Deadline& deadline) override {
    std::vector<std::uint8_t> value;
    try {
      store_->wait({key}, std::max(deadline.remaining(), std::chrono::milliseconds(1)));
      value = store_->get(key);
    } catch (const std::exception& error) {
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("{}: \"{}\" was not there after {:.1f} s", description_, key,
                                       deadline.span().count() / 1000.0));
      }
      throw BackendError(fmt::format("{}: {}", description_, first_line(error)));
    }
    return {value.begin(), value.end()};
  }

 private:
  template <class Action>
  void reach(Action action) {
    try {
      action();
    } catch (const std::exception& error) {
      throw BackendError(fmt::format("{}: {}", description_, first_line(error)));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string description_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                      int world_size, std::chrono::milliseconds timeout) {
  const std::string description = fmt::format("the store at tcp://{}:{}", host, port);
  const Deadline deadline = Deadline::after(timeout);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = serve;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return std::make_shared<C10dStore>(c10::make_intrusive<c10d::TCPStore>(host, options),
                                       description);
  } catch (const std::exception& error) {
    // Early, where c10d's next attempt would come after the deadline.
    if (deadline.passed() || first_line(error).find("timed out") != std::string::npos) {
      throw TimeoutError(fmt::format(
          "{} did not answer within {:.1f} s: is rank 0, which serves it, running there?",
          description, timeout.count() / 1000.0));
    }
    throw BackendError(fmt::format("{} cannot be {}: {}; choose another host or port", description,
                                   serve ? "served" : "reached", first_line(error)));
  }
}

std::shared_ptr<Store> make_file_store(const std::string& path, int world_size) {
  const std::string description = fmt::format("the store in file://{}", path);
  // c10d would wait for the folder to appear, for minutes.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UsageError(
        fmt::format("{}: there is no folder {}; make it first", description, folder.string()));
  }
  try {
    return std::make_shared<C10dStore>(c10::make_intrusive<c10d::FileStore>(path, world_size),
                                       description);
  } catch (const std::exception& error) {
    throw BackendError(fmt::format("{}: {}", description, first_line(error)));
  }
}

}  // namespace lockstep
