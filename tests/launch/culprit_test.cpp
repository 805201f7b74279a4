// SPDX-License-Identifier: BSD-3-Clause
// Which rank is at fault, from the ends of ranks and the losses that they report.
#include "lockstep/launch/culprit.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep {
namespace {

RankEnd running() {
  return {};
}
RankEnd ended(int noticed, int exit_code) {
  return {.status = ExitStatus{.exit_code = exit_code}, .noticed = noticed};
}
RankEnd killed(int noticed, int signal) {
  return {.status = ExitStatus{.signal = signal}, .noticed = noticed};
}
RankEnd lost(int rank, RankEnd end) {
  end.loss = Loss{.rank = rank, .text = "lost " + std::to_string(rank)};
  return end;
}

struct Found {
  int rank;
  int lost_by;
  bool may_change;
  bool operator==(const Found&) const = default;
};

Found find(const std::vector<RankEnd>& ranks, int first_rank = 0) {
  const auto culprit = find_culprit(ranks, first_rank).value();
  return {culprit.rank, culprit.lost_by, culprit.may_change};
}

TEST(Culprit, NoneIfNoneFailed) {
  EXPECT_FALSE(find_culprit({running(), ended(1, 0), lost(1, running())}, 0));
}

TEST(Culprit, IsTheRankThatFailsByItself) {
  EXPECT_EQ(find({running(), ended(1, 3), running()}), (Found{1, -1, false}));
  EXPECT_EQ(find({ended(2, 1), ended(1, 3)}), (Found{1, -1, false}));
  EXPECT_EQ(find({ended(1, 1), killed(1, SIGKILL)}), (Found{1, -1, false}));
  EXPECT_EQ(find({ended(1, 1), killed(2, SIGKILL)}), (Found{0, -1, false}));
}

// It may have gone on after a loss, and met something else.
TEST(Culprit, IsARankThatASignalKilledWhateverItHadLost) {
  EXPECT_EQ(find({lost(1, killed(2, SIGKILL)), ended(1, 0)}), (Found{0, -1, false}));
  EXPECT_EQ(find({lost(1, killed(2, SIGSEGV)), ended(1, 0)}), (Found{0, -1, false}));
  EXPECT_EQ(find({lost(1, killed(2, SIGABRT)), ended(1, 0)}), (Found{1, 0, false}));
}

TEST(Culprit, IsNotARankThatLostAnother) {
  EXPECT_EQ(find({lost(2, ended(1, 7)), lost(2, killed(1, SIGABRT)), ended(2, 1)}),
            (Found{2, 1, false}));
  EXPECT_EQ(find({lost(1, ended(1, 1)), lost(2, ended(2, 1)), ended(3, 1)}), (Found{2, 1, false}))
      << "a loss of a loss";
  EXPECT_EQ(find({lost(1, ended(1, 1)), lost(2, running()), ended(3, 1)}), (Found{2, 1, false}))
      << "who lost it need not end";
}

TEST(Culprit, MayHaveEndedWithCodeZeroOrBeStopped) {
  EXPECT_EQ(find({lost(1, ended(2, 1)), ended(1, 0)}), (Found{1, 0, false}));
  RankEnd stopped;
  stopped.stopped_by = SIGSTOP;
  EXPECT_EQ(find({lost(1, ended(2, 1)), stopped}), (Found{1, 0, false}));
}

TEST(Culprit, IsTheStoppedOneOfThoseThatWereLate) {
  RankEnd waited = lost(1, running());
  waited.loss->silent = true;
  RankEnd stopped;
  stopped.stopped_by = SIGSTOP;
  EXPECT_EQ(find({waited, ended(1, 7), stopped}), (Found{2, 0, false}));
}

TEST(Culprit, MayChangeWhileTheLostRankRuns) {
  EXPECT_EQ(find({lost(2, ended(1, 1)), running(), running()}), (Found{2, 0, true}));
  EXPECT_EQ(find({lost(2, ended(1, 1)), ended(2, 5), running()}), (Found{1, -1, false}));
}

TEST(Culprit, MayBeOfAnotherMachine) {
  EXPECT_EQ(find({lost(3, ended(1, 1)), lost(2, ended(1, 1))}, 4), (Found{3, 4, true}));
  EXPECT_EQ(find({lost(5, ended(1, 1)), lost(9, ended(1, 1))}, 4), (Found{9, 5, true}));
  EXPECT_EQ(find({lost(3, ended(1, 1)), ended(2, 1)}, 4), (Found{5, -1, false}));
}

TEST(Culprit, IsTheFirstOfThoseThatLostEachOther) {
  EXPECT_EQ(find({lost(1, ended(2, 1)), lost(0, ended(1, 1))}), (Found{1, -1, false}));
}

TEST(Loss, TravelsInTheStore) {
  const std::string bytes = encode({.rank = 12, .silent = true, .text = "waited 5 s"});
  const auto loss = decode_loss(bytes).value();
  EXPECT_EQ(loss.rank, 12);
  EXPECT_TRUE(loss.silent);
  EXPECT_EQ(loss.text, "waited 5 s");
  for (const char* wrong : {"", "l", "x1 text", "l1", "l-1 text", "l text"}) {
    EXPECT_FALSE(decode_loss(wrong)) << wrong;
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_loss(bytes.substr(0, length))) << length;
  }
  EXPECT_FALSE(decode_loss(bytes + "more"));
  EXPECT_FALSE(decode_loss(encode({.rank = -1, .text = "of nobody"})));
}

}  // namespace
}  // namespace lockstep
