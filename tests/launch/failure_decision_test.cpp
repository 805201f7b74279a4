// SPDX-License-Identifier: BSD-3-Clause
// Which rank is reported, when the other ranks are stopped, and with which words, from ends alone.
#include "lockstep/launch/failure_decision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

RankEnd runs() {
  return {};
}
RankEnd exited(int exit_code) {
  return {.status = ExitStatus{.exit_code = exit_code}, .noticed = 1};
}
RankEnd killed_by(int signal) {
  return {.status = ExitStatus{.signal = signal}, .noticed = 1};
}
RankEnd stopped() {
  return {.stopped_by = SIGSTOP};
}
RankEnd having_lost(int rank, RankEnd end, bool silent = false) {
  end.loss = Loss{.rank = rank, .silent = silent, .text = "lost " + std::to_string(rank)};
  return end;
}

FailureDecision decide(const std::vector<RankEnd>& ends, bool other_machines = false) {
  return decide_failure(ends, 0, other_machines).value();
}

RankFailure report(const std::vector<RankEnd>& ends) {
  const RankRecord record{.pid = 4711, .end = "its end", .last_words = "", .last_lines = {"line"}};
  return report_of(decide(ends), &record);
}

TEST(FailureDecision, WaitsForNothingWhenARankFailsByItself) {
  EXPECT_FALSE(decide_failure({runs(), exited(0)}, 0, false));
  const FailureDecision decision = decide({runs(), exited(3)});
  EXPECT_EQ(decision.culprit.rank, 1);
  EXPECT_EQ(decision.end.status->exit_code, 3);
  EXPECT_EQ(decision.grace, 0ms);
}

TEST(FailureDecision, GivesALostRankTimeToEndAndASilentOneLess) {
  const FailureDecision decision = decide({having_lost(1, exited(1)), runs()});
  EXPECT_EQ(decision.culprit.rank, 1);
  EXPECT_FALSE(decision.end.status);
  EXPECT_EQ(decision.grace, 2000ms);
  EXPECT_EQ(decide({having_lost(1, exited(1), /*silent=*/true), runs()}).grace, 1000ms);
  EXPECT_EQ(decide({having_lost(1, exited(1)), exited(2), runs()}).grace, 0ms) << "it has ended";
  EXPECT_EQ(decide({having_lost(1, exited(1), /*silent=*/true), stopped()}).grace, 0ms)
      << "it will not";
}

TEST(FailureDecision, LetsRanksReportToOtherMachines) {
  EXPECT_EQ(decide({exited(3), runs()}, /*other_machines=*/true).grace, 500ms);
  EXPECT_EQ(decide({having_lost(1, exited(1)), runs()}, /*other_machines=*/true).grace, 2000ms);
}

TEST(FailureDecision, DoesNotWaitOnceAllHaveEnded) {
  EXPECT_EQ(decide({exited(3), exited(0)}, /*other_machines=*/true).grace, 0ms);
  const auto elsewhere = decide_failure({having_lost(9, exited(1)), exited(0)}, 4, true).value();
  EXPECT_EQ(elsewhere.culprit.rank, 9);
  EXPECT_EQ(elsewhere.grace, 0ms);
}

TEST(FailureDecision, NamesTheFirstRankThatIsAbsent) {
  const auto arrived = [](int index) { return index == 0; };
  EXPECT_FALSE(decide_absence({runs(), runs()}, 0, /*deadline_passed=*/false, arrived));
  EXPECT_FALSE(decide_absence({runs(), exited(1)}, 0, false, arrived)) << "it failed by itself";
  EXPECT_EQ(decide_absence({runs(), exited(0)}, 0, false, arrived)->culprit.rank, 1);
  const auto late = decide_absence({runs(), runs(), runs()}, 6, /*deadline_passed=*/true, arrived);
  EXPECT_EQ(late->culprit.rank, 7);
  EXPECT_FALSE(late->end.status);
  EXPECT_FALSE(decide_absence({runs(), exited(0)}, 0, true, [](int) { return true; }));
}

TEST(FailureDecision, ReportsTheEndOfTheCulprit) {
  const RankFailure failure = report({runs(), killed_by(SIGSEGV)});
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.pid, 4711);
  EXPECT_EQ(failure.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(failure.signal, SIGSEGV);
  EXPECT_EQ(failure.cause, "its end");
  EXPECT_THAT(failure.last_lines, ElementsAre("line"));
}

TEST(FailureDecision, PrefersTheLastWordsOfTheCulprit) {
  const RankRecord record{.pid = 1, .end = "exit code 1", .last_words = "why", .last_lines = {}};
  EXPECT_EQ(report_of(decide({exited(1)}), &record).cause, "why");
}

TEST(FailureDecision, ReportsTheLossOfACulpritThatDidNotFail) {
  RankFailure failure = report({having_lost(1, exited(1)), exited(0)});
  EXPECT_EQ(failure.cause, "ended with code 0 before the others; rank 0 reports: lost 1");
  EXPECT_EQ(failure.exit_code, 0);
  failure = report({having_lost(1, exited(1)), stopped()});
  EXPECT_EQ(failure.cause, "stopped by signal 19 (SIGSTOP); rank 0 reports: lost 1");
  EXPECT_EQ(failure.exit_code, 1);
  failure = report({having_lost(1, exited(1)), runs()});
  EXPECT_EQ(failure.cause, "was lost while it still ran; rank 0 reports: lost 1");
}

TEST(FailureDecision, ReportsACulpritOfAnotherMachineByItsLoss) {
  const auto decision = decide_failure({having_lost(9, exited(1))}, 4, true).value();
  const RankFailure failure = report_of(decision, nullptr);
  EXPECT_EQ(failure.rank, 9);
  EXPECT_EQ(failure.pid, 0);
  EXPECT_EQ(failure.exit_code, 1);
  EXPECT_EQ(failure.cause, "rank 4 reports: lost 9");
}

}  // namespace
}  // namespace lockstep
