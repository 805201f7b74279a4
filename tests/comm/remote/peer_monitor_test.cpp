// SPDX-License-Identifier: BSD-3-Clause
// PeerMonitors of ranks that are threads, and pending peers at their server.
#include "lockstep/comm/remote/peer_monitor.h"

#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "lockstep/comm/remote/joining.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const std::lock_guard lock(mutex_);
    return counts_[key] += amount;
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline.remaining(), [&] { return values_.contains(key); })) {
      throw TimeoutError(key);
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
};

struct MonitorAddress {
  std::string host;
  std::uint16_t port = 0;
  std::string token;
};

class PeerMonitorTest : public ::testing::Test {
 protected:
  Membership member(int rank, int size, const std::string& secret = "") const {
    Membership member;
    member.rank = rank;
    member.world_size = size;
    member.store = store_;
    member.secret = secret;
    return member;
  }
  std::unique_ptr<PeerMonitor> join(int rank, int size,
                                    std::chrono::milliseconds timeout = 20s) const {
    return std::make_unique<PeerMonitor>(member(rank, size), "test", Deadline::after(timeout));
  }
  // All ranks of a group.
  std::vector<std::unique_ptr<PeerMonitor>> join_all(
      int size, std::chrono::milliseconds timeout = 20s) const {
    std::vector<std::unique_ptr<PeerMonitor>> monitors(static_cast<std::size_t>(size));
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back(
            [&, rank] { monitors[static_cast<std::size_t>(rank)] = join(rank, size, timeout); });
      }
    }
    return monitors;
  }
  MonitorAddress server() const {
    MonitorAddress address;
    std::istringstream(store_->get("test/0/1/server", Deadline::after(20s))) >> address.host >>
        address.port >> address.token;
    return address;
  }
  UniqueFd peer() const {
    const MonitorAddress address = server();
    return connect_tcp(address.host, address.port, Deadline::after(20s));
  }

  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
};

// Looks until it is so.
template <class Condition>
void expect_soon(PeerMonitor& monitor, const Condition& condition) {
  const Deadline deadline = Deadline::after(20s);
  while (!condition() && !deadline.passed()) {
    monitor.look();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(condition());
}

TEST_F(PeerMonitorTest, TellsWhoEndedTheGroupAndWhy) {
  const auto ranks = join_all(3);
  ranks[1]->tell(AbortCause::requested, -1, 12, "the loss is not a number");
  for (const auto& rank : ranks) {
    expect_soon(*rank, [&] { return rank->aborted().has_value(); });
    EXPECT_EQ(rank->aborted()->rank, 1);
    EXPECT_EQ(rank->aborted()->culprit, 12);
    EXPECT_EQ(rank->aborted()->reason, "the loss is not a number");
  }
}

TEST_F(PeerMonitorTest, TellsWhoDoesNotWait) {
  const auto ranks = join_all(3);
  ranks[0]->report_waiting(7, "all_reduce #7");
  ranks[0]->look();
  const std::string message = "recv #1 (3 Float elements, from rank 2)";
  ranks[1]->report_waiting(0, message);
  expect_soon(*ranks[2], [&] { return ranks[2]->absent_from(7) == Absent{{message, {1}}}; });
  const Absent to_rank_0{{message, {1}}, {"", {2}}};
  expect_soon(*ranks[0], [&] { return ranks[0]->absent_from(7) == to_rank_0; });
  EXPECT_EQ(ranks[0]->absent(1), (Absent{{message, {1}}}));
  EXPECT_EQ(ranks[0]->absent(2), (Absent{{"", {2}}}));
}

TEST_F(PeerMonitorTest, WhatARankHasWaitedInBeforeIsPast) {
  const auto ranks = join_all(3);
  ranks[1]->report_waiting(5, "all_reduce #5");
  expect_soon(*ranks[0], [&] { return ranks[0]->absent(1) == Absent{{"all_reduce #5", {1}}}; });
  EXPECT_EQ(ranks[0]->absent_from(6), (Absent{{"", {1, 2}}}));
}

TEST_F(PeerMonitorTest, RanksThatWaitInDifferentCallsAreTold) {
  const auto ranks = join_all(2);
  ranks[0]->report_waiting(7, "all_reduce #7 (sum of 3 Float elements)");
  ranks[1]->report_waiting(7, "barrier #7");
  for (const auto& rank : ranks) {
    expect_soon(*rank, [&] { return rank->aborted().has_value(); });
    EXPECT_EQ(rank->aborted()->cause, AbortCause::mismatched);
    EXPECT_EQ(rank->aborted()->reason,
              "rank 0 called all_reduce #7 (sum of 3 Float elements), but rank 1 called barrier "
              "#7; all ranks must make the same calls in the same order");
  }
}

TEST_F(PeerMonitorTest, AConnectionThatEndsIsALoss) {
  auto ranks = join_all(3);
  ranks[2].reset();
  expect_soon(*ranks[0], [&] { return ranks[0]->lost() == 2; });
  EXPECT_FALSE(ranks[0]->lost_by_death()) << "its process is this one";
  ranks[0].reset();
  expect_soon(*ranks[1], [&] { return ranks[1]->lost() == 2; });
}

TEST_F(PeerMonitorTest, AFarewellIsNone) {
  auto ranks = join_all(3);
  std::jthread leaving([&] {
    ranks[2]->say_farewell(5);
    ranks[2]->wait_for_farewells();
  });
  expect_soon(*ranks[0], [&] { return ranks[0]->left().contains(2); });
  EXPECT_EQ(ranks[0]->left().at(2).last_call, 5u);
  EXPECT_EQ(ranks[0]->left().at(2).reason, "");
  leaving.join();
  ranks[2].reset();
  ranks[0]->tell(AbortCause::requested, -1, -1, "to see that nothing came before");
  expect_soon(*ranks[1], [&] { return ranks[1]->aborted().has_value(); });
  EXPECT_FALSE(ranks[1]->lost());
}

TEST_F(PeerMonitorTest, TheFirstFarewellCounts) {
  auto ranks = join_all(2);
  ranks[1]->say_farewell(5, "an exception ended it", 7);
  ranks[1]->say_farewell(6);
  ranks[1].reset();
  expect_soon(*ranks[0], [&] { return ranks[0]->left().contains(1); });
  EXPECT_EQ(ranks[0]->left().at(1).last_call, 5u);
  EXPECT_EQ(ranks[0]->left().at(1).reason, "an exception ended it");
  EXPECT_EQ(ranks[0]->left().at(1).culprit, 7);
  EXPECT_FALSE(ranks[0]->lost());
}

TEST_F(PeerMonitorTest, NamesWhoDoesNotCome) {
  std::vector<std::jthread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([this, rank] {
      try {
        join(rank, 4, 5s);
        ADD_FAILURE() << "rank " << rank << " joined";
      } catch (const TimeoutError& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 1, 3 did not join within"));
      }
    });
  }
}

TEST_F(PeerMonitorTest, AMonitorThatDoesNotAnswerIsNamed) {
  const UniqueFd mute = listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = local_address(mute.get()).port;
  store_->set("test/0/1/server", fmt::format("127.0.0.1 {} token 1", port));
  EXPECT_THAT([this] { join(1, 2, 300ms); },
              ThrowsMessage<TimeoutError>(HasSubstr(
                  fmt::format("rank 0 did not answer at 127.0.0.1 port {} within 0.3 s", port))));
}

TEST_F(PeerMonitorTest, WhatARankDoesOnceAllHaveConnectedIsNoFailureToConnect) {
  const auto monitors = join_all(2);
  Joining slow(*monitors[1], "test", member(1, 2));
  std::future<void> first = std::async(std::launch::async, [&] {
    Joining(*monitors[0], "test", member(0, 2)).wait_for_all(Deadline::after(20s));
    monitors[0]->tell(AbortCause::requested, -1, -1, "the disk is full");
    monitors[0]->flush();
  });
  EXPECT_EQ(first.wait_for(100ms), std::future_status::timeout) << "rank 1 has not connected";
  monitors[1]->say_connected();
  first.get();
  slow.wait_for_all(Deadline::after(20s));
  slow.check();
  EXPECT_TRUE(monitors[1]->aborted());
}

TEST_F(PeerMonitorTest, NamesWhoDoesNotConnect) {
  const auto monitors = join_all(3, 6s);
  monitors[1]->say_connected();
  try {
    Joining(*monitors[0], "test", member(0, 3)).wait_for_all(Deadline::after(6s));
    FAIL() << "rank 2 has not connected";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 of 3: rank 2 did not connect within 6.0 s"));
    EXPECT_EQ(error.rank(), 2);
  }
}

TEST_F(PeerMonitorTest, ARankWithAnotherSecretIsRefused) {
  std::jthread rank_0([this] {
    EXPECT_THAT([this] { PeerMonitor(member(0, 2, "right"), "test", Deadline::after(5s)); },
                ThrowsMessage<TimeoutError>(
                    AllOf(HasSubstr("rank 1 did not join"), HasSubstr("knew another secret"))));
  });
  try {
    PeerMonitor(member(1, 2, "wrong"), "test", Deadline::after(20s));
    ADD_FAILURE() << "it joined";
  } catch (const BackendError& error) {
    EXPECT_THAT(error.what(), HasSubstr("refused this rank's secret"));
  }
}

// A port scan, noise, half an answer, silence: the ranks join all the same.
TEST_F(PeerMonitorTest, UnauthenticatedPeersCostNothing) {
  std::jthread rank_0([this] { EXPECT_EQ(join(0, 2)->own_host(), "127.0.0.1"); });
  std::vector<UniqueFd> silent;
  std::minstd_rand random(1);
  for (int i = 0; i < 200; ++i) {
    UniqueFd socket = peer();
    std::string noise(static_cast<std::size_t>(random() % 300), '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    ::send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (i % 3 == 0) silent.push_back(std::move(socket));
  }
  join(1, 2);
}

// Who knows the key can end itself, and no more.
TEST_F(PeerMonitorTest, ARankThatSendsNonsenseIsLost) {
  std::unique_ptr<PeerMonitor> rank_0;
  UniqueFd nonsense;
  {
    std::jthread thread([&] { rank_0 = join(0, 2); });
    nonsense = peer();
    authenticate(nonsense.get(), make_key(server().token, ""), Deadline::after(20s));
    const std::string hello =
        encode({.kind = MonitorMessage::Kind::hello, .rank = 1, .number = 4711});
    send_all(nonsense.get(), std::as_bytes(std::span(hello)), Deadline::after(20s));
  }
  const std::string giant = "\xff\xff\xff\xff and so on, for ever and ever";
  send_all(nonsense.get(), std::as_bytes(std::span(giant)), Deadline::after(20s));
  expect_soon(*rank_0, [&] { return rank_0->lost() == 1; });
  EXPECT_EQ(rank_0->name(1), "rank 1 (pid 4711)");
}

TEST(MonitorReader, PutsMessagesTogetherFromAnyPieces) {
  const MonitorMessage message{.kind = MonitorMessage::Kind::abort,
                               .cause = AbortCause::lost,
                               .rank = 3,
                               .lost_rank = 2,
                               .number = 1'000'000'000'000,
                               .text = "why"};
  const std::string twice = encode(message) + encode(message);
  for (std::size_t piece = 1; piece <= twice.size(); ++piece) {
    MonitorReader reader;
    int complete = 0;
    for (std::size_t at = 0; at < twice.size(); at += piece) {
      reader.add(std::as_bytes(std::span(twice).subspan(at, std::min(piece, twice.size() - at))));
      while (const auto read = reader.next()) {
        ++complete;
        EXPECT_EQ(read->number, message.number);
        EXPECT_EQ(read->text, message.text);
      }
    }
    EXPECT_EQ(complete, 2) << piece;
  }
}

TEST(MonitorReader, RefusesLengthsThatCannotBe) {
  for (const std::uint32_t length : {0u, 1u, 23u, 10'000'000u, 0xffffffffu}) {
    std::string bytes = encode({});
    std::memcpy(bytes.data(), &length, sizeof length);
    MonitorReader reader;
    reader.add(std::as_bytes(std::span(bytes)));
    EXPECT_THROW(reader.next(), BackendError) << length;
  }
}

}  // namespace
}  // namespace lockstep::remote
