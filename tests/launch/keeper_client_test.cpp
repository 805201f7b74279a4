// SPDX-License-Identifier: BSD-3-Clause
// The keeper between an agent and its ranks.
#include "lockstep/launch/keeper_client.h"

#include <utility>
#include <variant>

#include "support/process_table.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/launch/signal_watch.h"

namespace lockstep {
namespace {

using testing::children_of;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct Keeper {
  explicit Keeper(std::function<void()> body)
      : config{.ranks = 2,
               .leave_to_parent = [] {},
               .body = [body](const PlacedRank&, const UniqueFd&) { body(); }},
        keeper(config, memory_kills) {}

  // Starts both ranks and waits for their changes until the keeper is lost.
  void watch() {
    for (int rank = 0; rank < config.ranks; ++rank) keeper.next_started();
    while (true) next();
  }
  RankChange next() { return std::get<RankChange>(next_message()); }
  KeeperMessage next_message() {
    while (true) {
      if (auto message = keeper.next_message()) return std::move(*message);
      pollfd entry{keeper.descriptor(), POLLIN, 0};
      ::poll(&entry, 1, -1);
    }
  }

  const SignalsBlocked blocked{};
  const MemoryKills memory_kills{};
  const KeeperConfig config;
  KeeperClient keeper;
};

void wait_until_killed() {
  while (true) ::pause();
}

TEST(KeeperClient, ThatIsKilledDuringTheStartIsAnError) {
  Keeper keeper(wait_until_killed);
  ::kill(keeper.keeper.pid(), SIGKILL);
  EXPECT_THAT([&] { keeper.watch(); },
              ThrowsMessage<BackendError>(HasSubstr("died with it: killed by signal 9 (SIGKILL)")));
}

TEST(KeeperClient, TellsThatARankIsStoppedAndHowItEnds) {
  Keeper keeper(wait_until_killed);
  keeper.keeper.next_started();
  RankProcess rank(keeper.keeper.next_started());
  EXPECT_EQ(rank.rank(), 1);
  rank.signal(SIGSTOP);
  rank.take(keeper.next());
  EXPECT_EQ(rank.stopped_by(), SIGSTOP);
  EXPECT_FALSE(rank.status());
  rank.signal(SIGCONT);
  rank.take(keeper.next());
  EXPECT_EQ(rank.stopped_by(), 0);
  rank.signal(SIGKILL);
  rank.take(keeper.next());
  ASSERT_TRUE(rank.status());
  EXPECT_EQ(rank.status()->signal, SIGKILL);
}

TEST(KeeperClient, StartsAFurtherRank) {
  Keeper keeper(wait_until_killed);
  keeper.keeper.next_started();
  keeper.keeper.next_started();
  keeper.keeper.start({.rank = 2, .place = 0});
  RankProcess further(std::get<StartedRank>(keeper.next_message()));
  EXPECT_EQ(further.rank(), 2);
  EXPECT_TRUE(further.take_output()) << "it has streams of its own";
  further.signal(SIGKILL);
  const RankChange end = keeper.next();
  EXPECT_EQ(end.rank, 2);
  EXPECT_EQ(ExitStatus::from(end.code, end.status).signal, SIGKILL);
}

TEST(KeeperClient, ReapsWhatRanksLeaveBehindButNotTheRanks) {
  // Each rank leaves a child behind, which ends a moment later.
  Keeper keeper([] {
    if (::fork() == 0) {
      ::poll(nullptr, 0, 10);
      ::_exit(0);
    }
  });
  keeper.keeper.next_started();
  keeper.keeper.next_started();
  keeper.next();
  keeper.next();
  EXPECT_TRUE(eventually([&] { return children_of(keeper.keeper.pid()).size() == 2; }));
  keeper.keeper.end(std::chrono::milliseconds(0));
  EXPECT_THAT(children_of(::getpid()), IsEmpty());
}

}  // namespace
}  // namespace lockstep
