// SPDX-License-Identifier: BSD-3-Clause
// Agents that meet: which are refused, and what they learn of those that do not come. Attempts of
// whole jobs are in tools/cli/run_restarts_test.cpp.
#include "lockstep/launch/other_agents.h"

#include <csignal>

#include "support/free_port.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr MeetingLimits kShort{.first = 3s, .later = 3s};

class Agents : public ::testing::Test {
 protected:
  // An agent of a job with two machines, unless it says something else.
  OtherAgents agent(Hello job, const std::string& secret = "") const {
    if (job.machines == 0) job.machines = 2;
    return {{.number = job.machine, .nodes = 2, .host = "127.0.0.1", .port = port_},
            secret,
            job,
            kShort};
  }

  const int port_ = testing::free_port();
  SignalWatch signals_;
};

TEST_F(Agents, AMachineThatDoesNotComeIsNamed) {
  OtherAgents first = agent({.machine = 0});
  const auto met = first.meet(0, signals_);
  const auto& verdict = std::get<Verdict>(met);
  EXPECT_THAT(verdict.end.fault,
              HasSubstr("the `lockstep run` of machine 1 did not come within 3.0 s"));
  EXPECT_EQ(verdict.end.exit_code, 1);
  EXPECT_NE(verdict.why_final, "");
}

TEST_F(Agents, AMachine0ThatDoesNotAnswerIsNamed) {
  OtherAgents second = agent({.machine = 1});
  EXPECT_THAT([&] { second.meet(0, signals_); },
              ThrowsMessage<TimeoutError>(HasSubstr("machine 0 did not answer at 127.0.0.1:")));
}

TEST_F(Agents, OneThatDisagreesIsRefused) {
  const OtherAgents first = agent({.machine = 0, .ranks = 2, .max_restarts = 3});
  const auto refused = [&](const Hello& job, const std::string& reason) {
    OtherAgents other = agent(job);
    EXPECT_THAT([&] { other.meet(0, signals_); }, ThrowsMessage<UsageError>(HasSubstr(reason)));
  };
  refused({.machine = 1, .ranks = 4, .max_restarts = 3}, "machine 1 has 4 ranks, and machine 0");
  refused({.machine = 1, .ranks = 2, .max_restarts = 1}, "--max-restarts is 1 on machine 1");
  refused({.machine = 1, .machines = 3, .ranks = 2, .max_restarts = 3},
          "--nnodes is 3 on machine 1, and 2 on machine 0");
}

TEST_F(Agents, OneThatDoesNotKnowTheSecretIsTurnedAway) {
  const OtherAgents first = agent({.machine = 0}, "0123456789abcdef");
  OtherAgents other = agent({.machine = 1}, "fedcba9876543210");
  EXPECT_THROW(other.meet(0, signals_), BackendError);
}

TEST_F(Agents, ASignalEndsAMeeting) {
  OtherAgents first = agent({.machine = 0});
  ::raise(SIGTERM);
  const auto met = first.meet(0, signals_);
  EXPECT_EQ(std::get<Verdict>(met).end.signal, SIGTERM);
}

}  // namespace
}  // namespace lockstep
