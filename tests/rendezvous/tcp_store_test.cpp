// SPDX-License-Identifier: BSD-3-Clause
// The store of rank 0 and its clients as threads, and pending peers at its port.
#include "lockstep/rendezvous/tcp_store.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "support/limits.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/store_protocol.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Deadline at_leisure() {
  return Deadline::after(30s);
}

class TcpStoreTest : public ::testing::Test {
 protected:
  TcpStoreTest() {
    address_.host = "127.0.0.1";
    address_.secret = "0123456789abcdef";
    address_.world_size = 2;
    address_.timeout = 20s;
    auto [store, port] = serve_tcp_store(address_);
    rank_0_ = std::move(store);
    address_.port = port;
  }
  UniqueFd peer() const { return connect_tcp(address_.host, address_.port, at_leisure()); }

  TcpStoreOptions address_;
  std::shared_ptr<Store> rank_0_;
};

TEST_F(TcpStoreTest, BothEndsSeeWhatTheOtherSets) {
  const auto rank_1 = join_tcp_store(address_);
  rank_1->set("key", std::string("\0\xff", 2));
  EXPECT_EQ(rank_0_->get("key", at_leisure()), std::string("\0\xff", 2));
  EXPECT_EQ(rank_0_->add("count", 2), 2);
  EXPECT_EQ(rank_1->add("count", -5), -3);
}

TEST_F(TcpStoreTest, GetWaitsForTheKey) {
  const auto rank_1 = join_tcp_store(address_);
  std::string value;
  {
    std::jthread waiting([&] { value = rank_1->get("late", at_leisure()); });
    rank_0_->set("other", "1");
    rank_0_->set("late", "here");
  }
  EXPECT_EQ(value, "here");
  EXPECT_THAT([&] { rank_1->get("never", Deadline::after(50ms)); },
              ThrowsMessage<TimeoutError>(AllOf(HasSubstr("\"never\""), HasSubstr("127.0.0.1"))));
}

TEST_F(TcpStoreTest, ManyRanksAtOnce) {
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([this] {
      const auto store = join_tcp_store(address_);
      for (int i = 0; i < 50; ++i) store->add("count", 1);
    });
  }
  ranks.clear();
  EXPECT_EQ(rank_0_->add("count", 0), 400);
}

// As of pending peers that have no secret to prove.
TEST_F(TcpStoreTest, ConnectionsThatAskNothingTakeNoMoreThanTheirPlaces) {
  const Key key = make_key("store", address_.secret);
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(enter(address_.host, address_.port, key, at_leisure()));
  }
  join_tcp_store(address_)->set("key", "value");
  const auto is_open = [](const UniqueFd& socket) {
    pollfd entry{socket.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 0;
  };
  const auto open = std::ranges::count_if(idle, is_open);
  EXPECT_GT(open, 200);
  EXPECT_LT(open, 300);
  EXPECT_FALSE(is_open(idle.front())) << "the oldest goes first";
}

TEST_F(TcpStoreTest, AnotherSecretIsRefused) {
  for (const std::string secret : {"", "fedcba9876543210"}) {
    TcpStoreOptions other = address_;
    other.secret = secret;
    EXPECT_THAT([&] { join_tcp_store(other); },
                ThrowsMessage<BackendError>(HasSubstr("refused this rank's secret")));
  }
}

// By the time that its message about ranks that do not come is written.
TEST_F(TcpStoreTest, RankZeroKnowsWhoKnewAnotherSecret) {
  EXPECT_EQ(rank_0_->refused(), "");
  address_.secret = "fedcba9876543210";
  EXPECT_THROW(join_tcp_store(address_), BackendError);
  EXPECT_THAT(rank_0_->refused(),
              AllOf(HasSubstr("host 127.0.0.1"), HasSubstr("knew another secret")));
}

TEST_F(TcpStoreTest, WhatIsNoStoreIsRefused) {
  const UniqueFd other = listen_tcp("127.0.0.1", 0);
  address_.port = local_address(other.get()).port;
  std::jthread says_hello([&] {
    const UniqueFd socket = accept_connection(other.get(), at_leisure());
    send_all(socket.get(), std::as_bytes(std::span("SSH-2.0-OpenSSH_9.2p1 of another program")),
             at_leisure());
  });
  EXPECT_THAT(
      [&] { join_tcp_store(address_); },
      ThrowsMessage<BackendError>(HasSubstr("not Lockstep, or runs another version of it")));
}

TEST_F(TcpStoreTest, RankZeroIsWaitedForAndItsEndIsNamed) {
  const auto rank_1 = join_tcp_store(address_);
  rank_0_.reset();
  EXPECT_THAT([&] { rank_1->set("key", "value"); },
              ThrowsMessage<StoreLost>(HasSubstr("has rank 0 ended?")));
  address_.timeout = 200ms;
  EXPECT_THAT([&] { join_tcp_store(address_); },
              ThrowsMessage<TimeoutError>(HasSubstr("is rank 0, which serves it, running there?")));
  address_.timeout = 20s;
  std::jthread late([this] {
    std::this_thread::sleep_for(100ms);
    rank_0_ = serve_tcp_store(address_).store;
    rank_0_->set("late", "here");
  });
  EXPECT_EQ(join_tcp_store(address_)->get("late", at_leisure()), "here");
}

TEST_F(TcpStoreTest, AGetEndsWithTheStore) {
  const auto rank_1 = join_tcp_store(address_);
  std::jthread end([&] {
    std::this_thread::sleep_for(50ms);
    rank_0_.reset();
  });
  EXPECT_THROW(rank_1->get("never", at_leisure()), BackendError);
}

TEST_F(TcpStoreTest, APortThatIsTakenIsNamed) {
  EXPECT_THAT([&] { serve_tcp_store(address_); },
              ThrowsMessage<BackendError>(AllOf(HasSubstr(std::to_string(address_.port)),
                                                HasSubstr("another host or port"))));
}

// A port scan, noise, a request without a proof, silence, a giant length: ranks are served.
TEST_F(TcpStoreTest, UnauthenticatedPeersCostNothing) {
  std::vector<UniqueFd> silent;
  std::minstd_rand random(1);
  for (int i = 0; i < 300; ++i) {
    UniqueFd socket = peer();
    std::string noise(static_cast<std::size_t>(random() % 300), '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    if (i % 5 == 1)
      noise = store_protocol::encode_request(store_protocol::Operation::set, "k", "v");
    if (i % 5 == 2) noise = store_protocol::encode_length(0xffffffff);
    ::send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (i % 3 == 0) silent.push_back(std::move(socket));
  }
  const auto rank_1 = join_tcp_store(address_);
  rank_1->set("key", "value");
  EXPECT_EQ(rank_0_->get("key", at_leisure()), "value");
  EXPECT_THROW(rank_0_->get("k", Deadline::after(50ms)), TimeoutError);
}

// They stay in the kernel's queue until rank 0 has descriptors again.
TEST(TcpStore, ClientsWaitUntilRankZeroHasDescriptorsAgain) {
  testing::run_ranks(2, [](testing::Rank& rank) {
    const std::string file = rank.folder() + "/port";
    TcpStoreOptions options{
        .host = "127.0.0.1", .secret = {}, .rank = rank.rank(), .world_size = 2, .timeout = 1s};
    if (rank.rank() == 0) {
      const auto [store, port] = serve_tcp_store(options);
      std::ofstream(file) << port << std::flush;
      const rlimit before = testing::leave_no_descriptor();
      rank.cue("serving");
      rank.await(1, "late");
      EXPECT_THAT(store->refused(),
                  AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
      ::setrlimit(RLIMIT_NOFILE, &before);
      EXPECT_EQ(store->get("key", at_leisure()), "value");
    } else {
      rank.await(0, "serving");
      std::ifstream(file) >> options.port;
      EXPECT_THROW(join_tcp_store(options), TimeoutError);
      rank.cue("late");
      options.timeout = 30s;
      join_tcp_store(options)->set("key", "value");
    }
  });
}

TEST(ReachableHost, IsWhatWasAskedForUnlessItLeadsHomeOnly) {
  EXPECT_EQ(reachable_host("localhost", at_leisure()), "localhost");
  EXPECT_EQ(reachable_host("127.0.0.1", at_leisure()), "127.0.0.1");
  EXPECT_EQ(reachable_host("192.0.2.1", at_leisure()), "192.0.2.1");
  EXPECT_EQ(reachable_host("::1", at_leisure()), "::1");
  EXPECT_NE(reachable_host("0.0.0.0", at_leisure()), "0.0.0.0");
  EXPECT_NE(reachable_host("::", at_leisure()), "::");
  // Other notations of the same are no names either.
  EXPECT_EQ(reachable_host("0:0:0:0:0:0:0:1", at_leisure()), "0:0:0:0:0:0:0:1");
  EXPECT_EQ(reachable_host("127.1", at_leisure()), "127.1");
  EXPECT_THROW(reachable_host("no-such-host.invalid", Deadline::after(300ms)), BackendError);
}

}  // namespace
}  // namespace lockstep
