// SPDX-License-Identifier: BSD-3-Clause
// Runs c10d's stores in threads with deadlines, since they can hang.
#include "lockstep/rendezvous/c10d_store.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kStorePollInterval(2);
constexpr std::chrono::milliseconds kAnswerTimeout = std::chrono::seconds(30);
// A longer wait would help neither with a launcher that has ended nor with a broken file.
constexpr std::chrono::milliseconds kCloseTimeout = std::chrono::seconds(2);

// A store's description for messages, and the time that one call may take.
struct StoreTerms {
  std::string description;
  std::chrono::milliseconds patience;
  // The remedy for a store that does not answer.
  std::string remedy;
};

StoreSilent no_answer(const StoreTerms& terms) {
  return StoreSilent(fmt::format("{} did not answer within {:.1f} s: {}", terms.description,
                                 terms.patience.count() / 1000.0, terms.remedy));
}

// Runs the function in its own thread, since c10d's stores hang if the launcher is stopped or the
// file ends within an entry. Then the thread stays behind: the function must own what it uses.
template <class Function>
auto in_time(const StoreTerms& terms, Function function) {
  auto answer = ask_in_thread(std::move(function));
  if (answer.wait_for(terms.patience) != std::future_status::ready) throw no_answer(terms);
  try {
    return answer.get();
  } catch (const std::exception& error) {
    throw BackendError(fmt::format("{}: {}", terms.description, first_line(error)));
  }
}

using Handle = c10::intrusive_ptr<c10d::Store>;

class C10dStore final : public Store {
 public:
  C10dStore(Handle store, StoreTerms terms) : store_(std::move(store)), terms_(std::move(terms)) {}

  // Closing a file store writes to the file once more.
  ~C10dStore() override {
    terms_.patience = std::min(terms_.patience, kCloseTimeout);
    try {
      in_time(terms_, [store = std::move(store_)]() mutable { store.reset(); });
    } catch (const Error&) {  // the group no longer needs it
    }
  }

  void set(const std::string& key, const std::string& value) override {
    ask([key, value](c10d::Store& store) {
      store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return ask([key, amount](c10d::Store& store) { return store.add(key, amount); });
  }

  std::string get(const std::string& key, const Deadline& deadline) override {
    // Polls, since the store's own wait would block other threads' access.
    while (!ask([key](c10d::Store& store) { return store.check({key}); })) {
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("{}: key \"{}\" did not appear within {:.1f} s",
                                       terms_.description, key, deadline.span().count() / 1000.0));
      }
      std::this_thread::sleep_for(kStorePollInterval);
    }
    const auto value = ask([key](c10d::Store& store) { return store.get(key); });
    return {value.begin(), value.end()};
  }

 private:
  template <class Function>
  auto ask(Function function) -> std::invoke_result_t<Function, c10d::Store&> {
    return in_time(terms_, [store = store_, function = std::move(function)]() mutable {
      // Released before the caller gets the answer, so that the destructor holds the last
      // reference.
      const Handle used = std::move(store);
      return function(*used);
    });
  }

  Handle store_;
  StoreTerms terms_;
};

constexpr const char* kSameVersion =
    "It must come from the PyTorch whose libtorch this rank uses. Otherwise use `lockstep run`, or "
    "set TORCHELASTIC_USE_AGENT_STORE=False and MASTER_PORT to a free port for every rank, so that "
    "rank 0 serves the store";

Handle open_tcp_store(const StoreTerms& terms, const std::string& host,
                      const c10d::TCPStoreOptions& options) try {
  return in_time(terms, [host, options]() -> Handle {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    store->add("lockstep/answer", 0);
    return store;
  });
} catch (const BackendError& error) {
  // c10d gives up early if its next attempt would come after the deadline.
  if (std::string_view(error.what()).find("timed out") != std::string_view::npos) {
    throw no_answer(terms);
  }
  ErrorDetails details = error.details();
  details.remedy = kSameVersion;
  throw BackendError(std::move(details));
}

}  // namespace

std::shared_ptr<Store> join_c10d_store(const std::string& host, std::uint16_t port, int world_size,
                                       std::chrono::milliseconds timeout) {
  // torchrun serves its store before it starts ranks.
  const StoreTerms terms{
      .description = "torchrun's store at tcp://" + in_words(Endpoint{host, port}),
      .patience = std::min(timeout, kAnswerTimeout),
      .remedy = fmt::format("is torchrun still running? {}", kSameVersion),
  };
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = false;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.waitWorkers = false;
  libtorch::do_without_libuv(options);
  options.timeout = terms.patience;
  return std::make_shared<C10dStore>(open_tcp_store(terms, host, options), terms);
}

std::shared_ptr<Store> make_file_store(const std::string& path, int world_size,
                                       std::chrono::milliseconds timeout) {
  const StoreTerms terms{
      .description = fmt::format("the store in file://{}", path),
      .patience = std::min(timeout, kAnswerTimeout),
      .remedy =
          "another process may have ended while it wrote to the file; remove the file, or "
          "take another path, and start all ranks again",
  };
  // c10d would wait for the folder to appear, for minutes.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UsageError(fmt::format("{}: there is no folder {}; make it first", terms.description,
                                 folder.string()));
  }
  return std::make_shared<C10dStore>(in_time(terms,
                                             [path, world_size]() -> Handle {
                                               return c10::make_intrusive<c10d::FileStore>(
                                                   path, world_size);
                                             }),
                                     terms);
}

}  // namespace lockstep
