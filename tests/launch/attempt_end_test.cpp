// SPDX-License-Identifier: BSD-3-Clause
// Which failure counts among several machines', when a job is restarted, after which pause, and
// with which words.
#include "lockstep/launch/attempt_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

AttemptEnd failing(int rank, int pid, int exit_code, const std::string& cause = "its end") {
  return {.exit_code = exit_code,
          .failure = RankFailure{rank, pid, exit_code, 0, cause, {}},
          .duration = 1500ms};
}

TEST(AttemptEnd, OfAllMachinesIsTheEndThatSaysMost) {
  const AttemptEnd elsewhere = failing(3, 0, 1, "rank 0 reports: lost 3");
  AttemptEnd fault{.exit_code = 1, .machine = 2, .fault = "the keeper was lost"};
  AttemptEnd own = failing(3, 4711, 137);
  own.machine = 1;
  own.steps = 7;
  own.duration = 2s;
  const AttemptEnd ended_by_others{.exit_code = 1, .steps = 9, .duration = 3s};
  EXPECT_EQ(whole_end({elsewhere, ended_by_others}).failure->cause, "rank 0 reports: lost 3");
  EXPECT_EQ(whole_end({elsewhere, fault}).fault, "the keeper was lost");
  const AttemptEnd whole = whole_end({elsewhere, ended_by_others, fault, own});
  EXPECT_EQ(whole.failure->pid, 4711);
  EXPECT_EQ(whole.exit_code, 137);
  EXPECT_EQ(whole.machine, 1);
  EXPECT_EQ(whole.steps, 9);
  EXPECT_EQ(whole.duration, 3s);
}

TEST(AttemptEnd, OfAllMachinesKeepsASignalAndWhyNothingFollows) {
  const AttemptEnd stopped{.exit_code = 143, .signal = SIGTERM, .why_last = kToldToStop};
  const AttemptEnd whole = whole_end({{}, stopped});
  EXPECT_EQ(whole.signal, SIGTERM);
  EXPECT_EQ(whole.exit_code, 143);
  EXPECT_EQ(whole.why_last, kToldToStop);
  EXPECT_EQ(whole_end({failing(0, 1, 3), stopped}).signal, 0) << "the failure came first";
  EXPECT_EQ(whole_end({failing(0, 1, 3), stopped}).why_last, kToldToStop);
  EXPECT_EQ(whole_end({{}, {}}).exit_code, 0);
}

TEST(AttemptEnd, ARestartFollowsAFailureWhileAnyIsLeft) {
  AttemptEnd end = failing(1, 4711, 137);
  EXPECT_EQ(why_no_restart(end, 2), "");
  end.attempt = 1;
  EXPECT_EQ(why_no_restart(end, 2), "");
  end.attempt = 2;
  EXPECT_EQ(why_no_restart(end, 2), "--max-restarts 2 is reached");
  EXPECT_EQ(why_no_restart({.exit_code = 1, .fault = "the keeper was lost"}, 1), "");
  EXPECT_NE(why_no_restart({}, 1), "");
  end = failing(1, 4711, 3);
  end.why_last = kToldToStop;
  EXPECT_EQ(why_no_restart(end, 1), kToldToStop);
}

TEST(AttemptEnd, WrongUsageIsNotRepeated) {
  for (const int code : {2, 126, 127}) {
    EXPECT_THAT(why_no_restart(failing(0, 4711, code), 1),
                HasSubstr("exit code " + std::to_string(code)));
  }
  AttemptEnd killed = failing(0, 4711, 128 + SIGKILL);
  killed.failure->signal = SIGKILL;
  EXPECT_EQ(why_no_restart(killed, 1), "");
}

TEST(AttemptEnd, PausesGrowInACrashLoopUpToALimit) {
  EXPECT_EQ(back_off({1ms}), 1s);
  EXPECT_EQ(back_off({1ms, 1ms}), 2s);
  EXPECT_EQ(back_off({1ms, 1ms, 1ms}), 4s);
  EXPECT_EQ(back_off(std::vector<std::chrono::milliseconds>(100, 1ms)), 30s);
  EXPECT_EQ(back_off({1ms, 1ms, 1h}), 1s);
  EXPECT_EQ(back_off({1ms, 1h, 1ms}), 1s);
  EXPECT_EQ(back_off({1h, 1ms, 1ms}), 2s);
}

TEST(AttemptEnd, TheSummaryHasALineForEachAttempt) {
  AttemptEnd first = failing(1, 4711, 137, "killed by signal 9 (SIGKILL)");
  first.steps = 130;
  AttemptEnd second = failing(0, 4720, 3, "exit code 3");
  second.attempt = 1;
  second.machine = 0;
  second.duration = 400ms;
  second.failure->last_lines = {"last words"};
  EXPECT_EQ(summary({first, second}, 2, "--max-restarts 1 is reached"),
            "gave up after 2 attempts, since --max-restarts 1 is reached:\n"
            "  attempt 0: 1.5 s, step 130: rank 1 of 2 (pid 4711) failed first: killed by signal "
            "9 (SIGKILL)\n"
            "  attempt 1: 0.4 s: rank 0 of 2 (pid 4720 on machine 0) failed first: exit code 3\n"
            "the last lines of rank 0:\n"
            "  last words\n");
  EXPECT_EQ(summary({first}, 2, kToldToStop),
            "rank 1 of 2 (pid 4711) failed first: killed by signal 9 (SIGKILL)\n"
            "not restarted, since the job was told to stop\n");
}

}  // namespace
}  // namespace lockstep
