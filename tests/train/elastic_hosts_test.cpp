// SPDX-License-Identifier: BSD-3-Clause
// Trainings on two hosts, of which one is lost, cut off or replaced meanwhile. The state at the end
// must have the bits of the undisturbed training in one process.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "support/etcd.h"
#include "support/hosts.h"
#include "support/marked_processes.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Etcd;
using ::testing::HasSubstr;
using testing::Hosts;
using testing::Program;
using Words = std::vector<std::string>;

// Host 0 has etcd, and the others have launches.
class ElasticHosts : public ::testing::Test {
 protected:
  ~ElasticHosts() override { etcd_.reset(); }

  void SetUp() override {
    for (const std::string& why_not : {Etcd::why_not(), Hosts::why_not()}) {
      if (!why_not.empty()) return testing::skip_or_fail(why_not);
    }
    hosts_ = std::make_unique<Hosts>(4, 1000);
    etcd_ = std::make_unique<Etcd>(Hosts::address(0),
                                   [this](const Words& words) { return hosts_->on(0, words); });
  }

  static std::string hash_in(const std::string& text) {
    const auto begin = text.find("hash ");
    return begin == std::string::npos ? "none: " + text : text.substr(begin + 5, 64);
  }

  // 15 steps. Before the seventh, all wait until a host has been lost; with `replaced`, before the
  // eleventh until another one has come.
  static Words training(bool replaced) {
    Words words{ELASTIC_PROGRAM, "model=cnn", "wait=7:1"};
    if (replaced) words.emplace_back("wait=11:2");
    return words;
  }

  std::unique_ptr<Program> start(int host, bool replaced = false) const {
    Words launch{"sh",
                 "-c",
                 "exec \"$@\" 2>&1",
                 "sh",
                 LOCKSTEP_PROGRAM,
                 "run",
                 "--nnodes",
                 "2",
                 "-n",
                 "1",
                 "--elastic",
                 "1:2",
                 "--rdzv-backend",
                 "etcd",
                 "--rdzv-endpoint",
                 etcd_->endpoint(),
                 "--rdzv-id",
                 "training"};
    const Words program = training(replaced);
    launch.insert(launch.end(), program.begin(), program.end());
    return std::make_unique<Program>(hosts_->on(host, launch));
  }

  void expect_undisturbed(Program& program) const {
    EXPECT_EQ(program.wait(), 0) << program.out();
    EXPECT_EQ(hash_in(program.out()), hash_in(testing::run_to_end(training(false)).out))
        << program.out();
  }

  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<Etcd> etcd_;
  const testing::MarkedProcesses marked_;
};

TEST_F(ElasticHosts, GoOnWithoutTheHostThatIsKilledAndTakeInAnotherOne) {
  const auto one = start(1, true);
  const auto other = start(2, true);
  one->wait_for("epoch 0 had 5 steps");
  other->wait_for("epoch 0 had 5 steps");
  const bool one_has_rank_0 = one->out().find("[member 0] ") != std::string::npos;
  Program& killed = one_has_rank_0 ? *one : *other;
  Program& stays = one_has_rank_0 ? *other : *one;
  killed.signal(SIGKILL);
  stays.wait_for("1 rank goes on (generation 1)");
  const auto third = start(3, true);
  third->wait_for("joins as rank 1 of 2 (generation 2)");
  EXPECT_EQ(third->wait(), 0) << third->out();
  expect_undisturbed(stays);
  EXPECT_THAT(stays.out(),
              AllOf(HasSubstr(" was lost\n"), HasSubstr("rank 1 has got the state of rank 0")));
}

TEST_F(ElasticHosts, GoOnWhereEtcdIsAndEndWhereItIsNot) {
  const auto cut = start(1);
  const auto stays = start(2);
  cut->wait_for("epoch 0 had 5 steps");
  stays->wait_for("epoch 0 had 5 steps");
  hosts_->cut(1);
  EXPECT_EQ(cut->wait(), 1);
  EXPECT_THAT(cut->out(), HasSubstr("this host has lost its place in job training"));
  EXPECT_EQ(cut->out().find("hash "), std::string::npos);
  expect_undisturbed(*stays);
}

}  // namespace
}  // namespace lockstep
