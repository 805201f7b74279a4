// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/c10d_store.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/service_thread.h"
#include "lockstep/libtorch_version.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kAskAgain(2);

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
    // Not by the store's own wait: other threads could not reach it meanwhile.
    while (!is_there(key)) {
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("{}: \"{}\" was not there after {:.1f} s", description_, key,
                                       deadline.span().count() / 1000.0));
      }
      std::this_thread::sleep_for(kAskAgain);
    }
    std::vector<std::uint8_t> value;
    reach([&] { value = store_->get(key); });
    return {value.begin(), value.end()};
  }

 private:
  bool is_there(const std::string& key) {
    bool there = false;
    reach([&] { there = store_->check({key}); });
    return there;
  }

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

// torchrun serves its store before it starts ranks.
constexpr std::chrono::milliseconds kLongestAnswer = std::chrono::seconds(30);
constexpr const char* kSameVersion =
    "It must be of the PyTorch whose libtorch this rank uses; `lockstep run` is not bound to one";

using TcpStore = c10::intrusive_ptr<c10d::TCPStore>;

// c10d asks without a deadline, and the store of another version may never answer. Then the thread
// stays behind; it has nothing that anybody else uses.
std::future<TcpStore> open_in_thread(const std::string& host,
                                     const c10d::TCPStoreOptions& options) {
  return ask_in_thread([host, options] {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    store->add("lockstep/answer", 0);
    return store;
  });
}

}  // namespace

std::shared_ptr<Store> join_c10d_store(const std::string& host, std::uint16_t port, int world_size,
                                       std::chrono::milliseconds timeout) {
  const std::string description = fmt::format("torchrun's store at tcp://{}:{}", host, port);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = false;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.waitWorkers = false;
  libtorch::do_without_libuv(options);
  options.timeout = std::min(timeout, kLongestAnswer);
  auto answer = open_in_thread(host, options);
  const bool in_time = answer.wait_for(options.timeout) == std::future_status::ready;
  try {
    if (in_time) return std::make_shared<C10dStore>(answer.get(), description);
  } catch (const std::exception& error) {
    // Early, where c10d's next attempt would come after the deadline.
    if (first_line(error).find("timed out") == std::string::npos) {
      throw BackendError(
          fmt::format("{} cannot be used: {}; {}", description, first_line(error), kSameVersion));
    }
  }
  throw TimeoutError(fmt::format("{} did not answer within {:.1f} s: is torchrun still running? {}",
                                 description, options.timeout.count() / 1000.0, kSameVersion));
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
