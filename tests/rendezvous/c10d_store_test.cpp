// SPDX-License-Identifier: BSD-3-Clause
// c10d's stores in TCP and in a file, with ranks and launchers that fail.
#include "lockstep/rendezvous/c10d_store.h"

#include <fstream>

#include "comm/conformance/expect_error.h"
#include "support/free_port.h"
#include "support/rank_processes.h"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

using MakeStore = std::function<std::shared_ptr<Store>(Rank&)>;

const std::string& all_bytes() {
  static const std::string bytes = [] {
    std::string result;
    for (int i = 0; i < 512; ++i) result += static_cast<char>(i);
    return result;
  }();
  return bytes;
}

// What both stores must do, between two processes.
void use_from_two_ranks(const MakeStore& make_store) {
  run_ranks(2, [&](Rank& rank) {
    const auto store = make_store(rank);
    const std::string own = fmt::format("rank/{}", rank.rank());
    const std::string other = fmt::format("rank/{}", 1 - rank.rank());
    store->set(own, all_bytes());
    EXPECT_EQ(store->get(other, Deadline::after(30s)), all_bytes());
    // Over the older value.
    rank.cue("read");
    rank.await(1 - rank.rank(), "read");
    store->set(own, "");
    rank.cue("written");
    rank.await(1 - rank.rank(), "written");
    EXPECT_EQ(store->get(other, Deadline::after(30s)), "");

    const std::int64_t sum = store->add("count", 1);
    EXPECT_TRUE(sum == 1 || sum == 2) << sum;
    rank.cue("added");
    rank.await(1 - rank.rank(), "added");
    EXPECT_EQ(store->add("count", 0), 2);

    const auto begin = std::chrono::steady_clock::now();
    expect_error<TimeoutError>("a key that never comes", {"\"never\"", "0.2 s"},
                               [&] { store->get("never", Deadline::after(200ms)); });
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 190ms);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
    rank.cue("done");
    rank.await(1 - rank.rank(), "done");
  });
}

// Rank 0's process serves it here, as torchrun does.
TEST(C10dStore, ServesTwoRanksOverTcp) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = static_cast<std::uint16_t>(free_port());
  libtorch::do_without_libuv(options);
  c10::intrusive_ptr<c10d::TCPStore> served;
  use_from_two_ranks([&](Rank& rank) {
    if (rank.rank() == 0) served = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    return join_c10d_store("127.0.0.1", options.port, 2, 30s);
  });
}

TEST(C10dStore, ALauncherThatIsNotThereIsNamed) {
  const auto port = static_cast<std::uint16_t>(free_port());
  run_ranks(1, [&](Rank&) {
    expect_error<StoreSilent>(
        "nobody serves", {std::to_string(port), "torchrun", "TORCHELASTIC_USE_AGENT_STORE=False"},
        [&] { join_c10d_store("127.0.0.1", port, 2, 500ms); });
  });
}

// As a torchrun of another version may be.
TEST(C10dStore, ALauncherThatDoesNotAnswerIsNamed) {
  const TakenPort silent;
  run_ranks(1, [&](Rank&) {
    expect_error<StoreSilent>(
        "nobody answers", {std::to_string(silent.port()), "torchrun", "MASTER_PORT to a free port"},
        [&] { join_c10d_store("127.0.0.1", static_cast<std::uint16_t>(silent.port()), 2, 2s); });
  });
}

TEST(C10dStore, ServesTwoRanksInAFile) {
  use_from_two_ranks([](Rank& rank) { return make_file_store(rank.folder() + "/store", 2, 30s); });
}

TEST(C10dStore, AGetIsAnsweredWhenTheKeyIsSetLater) {
  run_ranks(2, [](Rank& rank) {
    const auto store = make_file_store(rank.folder() + "/store", 2, 30s);
    if (rank.rank() == 0) {
      rank.cue("asking");
      EXPECT_EQ(store->get("late", Deadline::after(30s)), "value");
    } else {
      rank.await(0, "asking");
      store->set("late", "value");
    }
  });
}

// As a rank leaves it that dies between its writes: c10d reads on there forever.
TEST(C10dStore, AFileThatEndsWithinAnEntryIsNamed) {
  run_ranks(1, [](Rank& rank) {
    const std::string path = rank.folder() + "/store";
    const auto written = make_file_store(path, 2, 30s);
    written->set("key", "value");
    const auto store = make_file_store(path, 2, 2s);
    const std::uint64_t length_of_key = 20;
    std::ofstream(path, std::ios::app | std::ios::binary)
        .write(reinterpret_cast<const char*>(&length_of_key), sizeof length_of_key);
    const std::vector<std::string> words = {path, "2.0 s", "remove the file"};
    expect_error<StoreSilent>("a get", words, [&] { store->get("key", Deadline::after(30s)); });
    expect_error<StoreSilent>("another rank", words,
                              [&] { make_file_store(path, 2, 2s)->set("other", "value"); });
  });
}

TEST(C10dStore, AFolderThatDoesNotExistIsNamed) {
  run_ranks(1, [](Rank& rank) {
    const std::string path = rank.folder() + "/no/such/folder/store";
    expect_error<UsageError>("a missing folder", {path, "no folder"},
                             [&] { make_file_store(path, 2, 30s); });
  });
}

}  // namespace
}  // namespace lockstep::testing
