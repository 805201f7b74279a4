// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --rdzv-backend etcd`: elastic jobs of several launches that meet in a real etcd, on
// one machine and on hosts that are cut off. The program is tests/support/elastic_member.cpp.
#include <csignal>
#include <fstream>
#include <memory>

#include "support/etcd.h"
#include "support/hosts.h"
#include "support/skip_or_fail.h"
#include "tests/tools/cli/run_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Ended;
using testing::Etcd;
using ::testing::HasSubstr;
using testing::Hosts;
using ::testing::Not;
using testing::occurrences;
using testing::Program;
using Words = std::vector<std::string>;

// More than the greatest pid.
constexpr const char* kJob = "4194305";

class RunCluster : public Run {
 protected:
  ~RunCluster() override {
    etcd_.reset();
    for (const std::string& file : files_) std::filesystem::remove(tmpdir.path() / file);
  }

  void SetUp() override {
    const std::string why_not = Etcd::why_not();
    if (!why_not.empty()) return testing::skip_or_fail(why_not);
    etcd_ = std::make_unique<Etcd>();
  }

  // One host's launch. Standard error comes with the output.
  Words host(const Words& options, const std::string& how = "") const {
    Words launch{"sh",
                 "-c",
                 "exec \"$@\" 2>&1",
                 "sh",
                 LOCKSTEP_PROGRAM,
                 "run",
                 "--rdzv-backend",
                 "etcd",
                 "--rdzv-endpoint",
                 etcd_->endpoint(),
                 "--rdzv-id",
                 kJob};
    launch.insert(launch.end(), options.begin(), options.end());
    launch.insert(launch.end(), {ELASTIC_MEMBER, how});
    return launch;
  }

  // They have ranks in this order.
  std::vector<std::unique_ptr<Program>> start(int count, const Words& options) {
    std::vector<std::unique_ptr<Program>> hosts;
    for (int i = 0; i < count; ++i) {
      hosts.push_back(std::make_unique<Program>(host(options)));
      wait_for_hosts(i + 1, count);
    }
    return hosts;
  }

  // Until so many of these have come, unless the job begins with them.
  void wait_for_hosts(int come, int count) const {
    if (come == count) return;
    EXPECT_TRUE(testing::eventually([&] { return occurrences(keys(), "/hosts/") == come; }));
    // With the terms of the first one.
    EXPECT_TRUE(testing::eventually([&] { return occurrences(keys(), "/job\n") == 1; }));
  }

  std::string keys() const {
    return testing::run_to_end({"etcdctl", "--endpoints", etcd_->endpoint(), "get", "--prefix",
                                "--keys-only", "/lockstep/"})
        .out;
  }

  void make_file(const std::string& name) {
    std::ofstream(tmpdir.path() / name);
    files_.push_back(name);
  }

  pid_t process_of(int member) const {
    const auto found = testing::processes_with(
        {"LOCKSTEP_TEST_MARK=" + mark, fmt::format("LOCKSTEP_MEMBER={}", member)});
    // A signal to process 0 would go to this one, and to ctest.
    if (found.size() == 1) return found.front();
    throw std::runtime_error(fmt::format("{} processes are member {}", found.size(), member));
  }

  static Ended resize(const Program& launcher, int ranks) {
    return testing::run_to_end(
        {LOCKSTEP_PROGRAM, "resize", std::to_string(launcher.pid()), std::to_string(ranks)});
  }

  static Words with(Words options, const Words& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }

  static void wait_for_rank(Program& program, int generation, int rank, int size) {
    program.wait_for(fmt::format("generation {}: rank {} of {} goes on", generation, rank, size));
  }

  // Of kTwoByTwo.
  static void wait_for_all(const std::vector<std::unique_ptr<Program>>& hosts) {
    for (int rank = 0; rank < 4; ++rank) {
      wait_for_rank(*hosts[static_cast<std::size_t>(rank / 2)], 0, rank, 4);
    }
  }

  std::unique_ptr<Etcd> etcd_;

 private:
  std::vector<std::string> files_;
};

const Words kTwoByOne{"--nnodes", "2", "-n", "1", "--elastic", "1:2"};
const Words kTwoByTwo{"--nnodes", "2", "-n", "2", "--elastic", "1:4"};

TEST_F(RunCluster, HostsMeetAndFinish) {
  auto hosts = start(2, kTwoByTwo);
  wait_for_all(hosts);
  make_file("finish");
  for (auto& host : hosts) EXPECT_EQ(host->wait(), 0) << host->out();
  EXPECT_EQ(keys(), "") << "nothing is left in etcd";
}

TEST_F(RunCluster, ALostRankIsReplacedOnItsHost) {
  for (const int lost : {0, 2}) {
    auto hosts = start(2, kTwoByTwo);
    for (int rank : {2, 3}) wait_for_rank(*hosts[1], 0, rank, 4);
    ::kill(process_of(lost), SIGKILL);
    Program& own = *hosts[static_cast<std::size_t>(lost / 2)];
    own.wait_for("member 4 joins as rank 3 of 4 (generation 2)");
    wait_for_rank(own, 2, 3, 4);
    make_file("finish");
    for (auto& host : hosts) EXPECT_EQ(host->wait(), 0) << host->out();
    std::filesystem::remove(tmpdir.path() / "finish");
    EXPECT_THAT(own.out(), AllOf(HasSubstr(fmt::format("member {} (rank {}, pid ", lost, lost)),
                                 HasSubstr("was lost: killed by signal 9 (SIGKILL)"),
                                 HasSubstr("member 4 is started\n")));
    EXPECT_THAT(hosts[static_cast<std::size_t>(1 - lost / 2)]->out(),
                AllOf(HasSubstr(fmt::format("member {} on 127.0.0.1 was lost\n", lost)),
                      HasSubstr("3 ranks go on (generation 1)\n"),
                      HasSubstr("member 4 joins as rank 3 of 4 (generation 2)\n")));
  }
}

TEST_F(RunCluster, TheOthersGoOnWithoutAHostAndAnotherOneComes) {
  auto hosts = start(2, kTwoByOne);
  wait_for_rank(*hosts[1], 0, 1, 2);
  hosts[0]->signal(SIGKILL);
  wait_for_rank(*hosts[1], 1, 0, 1);
  EXPECT_THAT(hosts[1]->out(), AllOf(HasSubstr("member 0 on 127.0.0.1 was lost\n"),
                                     HasSubstr("1 rank goes on (generation 1)\n")));
  Program another(host(kTwoByOne));
  wait_for_rank(another, 2, 1, 2);
  wait_for_rank(*hosts[1], 2, 0, 2);
  make_file("finish");
  EXPECT_EQ(another.wait(), 0) << another.out();
  EXPECT_EQ(hosts[1]->wait(), 0) << hosts[1]->out();
}

TEST_F(RunCluster, AHostThatIsStoppedLeavesAtOnce) {
  auto hosts = start(2, kTwoByOne);
  wait_for_rank(*hosts[1], 0, 1, 2);
  hosts[0]->signal(SIGTERM);
  EXPECT_EQ(hosts[0]->wait(), 128 + SIGTERM);
  EXPECT_EQ(occurrences(keys(), "/hosts/"), 1) << "it has given up its lease";
  wait_for_rank(*hosts[1], 1, 0, 1);
  make_file("finish");
  EXPECT_EQ(hosts[1]->wait(), 0) << hosts[1]->out();
}

TEST_F(RunCluster, TooFewRanksEndTheJobOnAllHosts) {
  auto hosts = start(2, {"--nnodes", "2", "-n", "1", "--elastic", "2:2"});
  wait_for_rank(*hosts[1], 0, 1, 2);
  ::kill(process_of(1), SIGKILL);
  EXPECT_EQ(hosts[1]->wait(), 128 + SIGKILL);
  EXPECT_EQ(hosts[0]->wait(), 1);
  EXPECT_THAT(hosts[1]->out(), HasSubstr("lockstep run: rank 1 of 2 (pid "));
  EXPECT_THAT(hosts[0]->out(), HasSubstr("the job cannot go on: 1 rank is left to train, and "
                                         "--elastic wants at least 2"));
}

TEST_F(RunCluster, AWrongCommandEndsTheJobOnAllHosts) {
  Program first(host(kTwoByOne, "2"));
  wait_for_hosts(1, 2);
  Program second(host(kTwoByOne));
  wait_for_rank(second, 0, 1, 2);
  ::kill(process_of(0), SIGKILL);
  EXPECT_EQ(first.wait(), 2);
  EXPECT_THAT(first.out(), HasSubstr("lockstep run: member 2 (pid "));
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.out(), HasSubstr("the job cannot go on: member 2 ended: exit code 2"));
}

TEST_F(RunCluster, ACrashLoopUsesUpAHostsReplacementsAndTheOthersGoOn) {
  const Words options = with(kTwoByOne, {"--max-restarts", "2"});
  Program first(host(options, "3"));
  wait_for_hosts(1, 2);
  Program second(host(options));
  wait_for_rank(second, 0, 1, 2);
  ::kill(process_of(0), SIGKILL);
  EXPECT_EQ(first.wait(), 3);
  EXPECT_EQ(occurrences(first.out(), "was lost: exit code 3"), 2);
  EXPECT_THAT(first.out(), HasSubstr("; it is not replaced\n"));
  wait_for_rank(second, 1, 0, 1);
  make_file("finish");
  EXPECT_EQ(second.wait(), 0) << second.out();
}

TEST_F(RunCluster, ARankThatFailsAfterTheTrainingFailsTheJob) {
  auto hosts = start(2, kTwoByOne);
  wait_for_rank(*hosts[1], 0, 1, 2);
  make_file("work");
  make_file("finish");
  for (auto& host : hosts) host->wait_for("finished after generation 0");
  ::kill(process_of(0), SIGKILL);
  EXPECT_EQ(hosts[0]->wait(), 128 + SIGKILL);
  EXPECT_EQ(hosts[1]->wait(), 1);
  EXPECT_THAT(
      hosts[1]->out(),
      HasSubstr("member 0, which had completed the training, was lost: killed by signal 9"));
}

TEST_F(RunCluster, ANewcomerEndsWithTheTraining) {
  Program first(host(kTwoByOne, "lobby"));
  wait_for_hosts(1, 2);
  Program second(host(kTwoByOne));
  wait_for_rank(second, 0, 1, 2);
  ::kill(process_of(0), SIGKILL);
  first.wait_for("in the lobby");
  wait_for_rank(second, 1, 0, 1);
  make_file("finish");
  EXPECT_EQ(second.wait(), 0) << second.out();
  EXPECT_EQ(first.wait(), 0) << first.out();
  EXPECT_EQ(occurrences(first.out(), "finished"), 0);
}

TEST_F(RunCluster, AHostTooManyWaitsUntilThereIsRoom) {
  auto hosts = start(2, kTwoByOne);
  wait_for_rank(*hosts[1], 0, 1, 2);
  Program spare(host(kTwoByOne));
  wait_for_hosts(3, 4);
  hosts[1]->signal(SIGTERM);
  EXPECT_EQ(hosts[1]->wait(), 128 + SIGTERM);
  wait_for_rank(spare, 2, 1, 2);
  make_file("finish");
  EXPECT_EQ(spare.wait(), 0) << spare.out();
  EXPECT_EQ(hosts[0]->wait(), 0) << hosts[0]->out();
}

// Its record is still in etcd.
TEST_F(RunCluster, AJobWhoseHostsWereAllKilledBeginsAnew) {
  {
    const auto hosts = start(2, kTwoByOne);
    wait_for_rank(*hosts[1], 0, 1, 2);
    for (const auto& host : hosts) host->signal(SIGKILL);
    for (const auto& host : hosts) host->wait();
  }
  auto hosts = start(2, kTwoByOne);
  for (auto& host : hosts) host->wait_for("generation 0: rank ");
  make_file("finish");
  for (auto& host : hosts) EXPECT_EQ(host->wait(), 0) << host->out();
}

TEST_F(RunCluster, EtcdMayBeAwayForAWhileButNotForLong) {
  auto hosts = start(2, kTwoByOne);
  wait_for_rank(*hosts[1], 0, 1, 2);
  etcd_->signal(SIGSTOP);
  ::kill(process_of(1), SIGKILL);
  hosts[1]->wait_for("member 1 (rank 1, pid ");
  etcd_->signal(SIGCONT);
  wait_for_rank(*hosts[0], 2, 0, 2);
  etcd_->signal(SIGKILL);
  for (auto& host : hosts) {
    EXPECT_EQ(host->wait(), 1);
    EXPECT_THAT(host->out(), HasSubstr("its lease was not renewed: "));
  }
}

TEST_F(RunCluster, AStoppedRankIsKilledAndReplaced) {
  auto hosts = start(2, with(kTwoByTwo, {"--hang-timeout", "8"}));
  wait_for_all(hosts);
  ::kill(process_of(3), SIGSTOP);
  wait_for_rank(*hosts[1], 2, 3, 4);
  make_file("finish");
  for (auto& host : hosts) EXPECT_EQ(host->wait(), 0) << host->out();
  EXPECT_THAT(hosts[1]->out(), AllOf(HasSubstr("member 3 (rank 3, pid "),
                                     HasSubstr("was lost: killed by the launcher, since it made no "
                                               "progress for 8.0 s")));
  EXPECT_THAT(hosts[0]->out(), HasSubstr("member 3 on 127.0.0.1 was lost\n"));
}

// Its host does not see that the others wait for it.
TEST_F(RunCluster, ARankThatHangsInItsPartOfAStepIsKilledAndReplaced) {
  auto hosts = start(2, with(kTwoByTwo, {"--hang-timeout", "8"}));
  wait_for_all(hosts);
  make_file("hang_1");
  wait_for_rank(*hosts[0], 2, 3, 4);
  make_file("finish");
  for (auto& host : hosts) {
    EXPECT_EQ(host->wait(), 0) << host->out();
    EXPECT_EQ(occurrences(host->out(), "was lost"), 1) << host->out();
  }
  EXPECT_THAT(hosts[0]->out(), HasSubstr("member 1 (rank 1, pid "));
}

TEST_F(RunCluster, ANewcomerThatHangsBeforeItJoinsIsKilledAndReplaced) {
  const Words options = with(kTwoByOne, {"--hang-timeout", "8"});
  Program first(host(options, "lobby"));
  wait_for_hosts(1, 2);
  Program second(host(options));
  wait_for_rank(first, 0, 0, 2);
  wait_for_rank(second, 0, 1, 2);
  ::kill(process_of(0), SIGKILL);
  first.wait_for("member 2 (a newcomer, pid ");
  make_file("join");
  wait_for_rank(first, 2, 1, 2);
  make_file("finish");
  EXPECT_EQ(first.wait(), 0) << first.out();
  EXPECT_EQ(second.wait(), 0) << second.out();
  EXPECT_THAT(first.out(),
              HasSubstr("was lost: killed by the launcher, since it had not joined within "));
}

TEST_F(RunCluster, GrowsWhenAnyHostIsAskedTo) {
  auto hosts = start(2, {"--nnodes", "2", "-n", "1", "--elastic", "1:4"});
  wait_for_rank(*hosts[1], 0, 1, 2);
  const Ended asked = resize(*hosts[1], 4);
  EXPECT_EQ(asked.out,
            fmt::format("job {}: 4 ranks instead of 2: newcomers join at the end of a step\n",
                        hosts[1]->pid()))
      << asked.err;
  for (auto& host : hosts) host->wait_for(" is started\n");
  for (auto& host : hosts) host->wait_for(" of 4 goes on", 2);
  make_file("finish");
  for (auto& host : hosts) EXPECT_EQ(host->wait(), 0) << host->out();
}

TEST_F(RunCluster, ShrinksWhenAnyHostIsAskedTo) {
  auto hosts = start(2, kTwoByTwo);
  wait_for_all(hosts);
  EXPECT_THAT(resize(*hosts[0], 3).out,
              HasSubstr("3 ranks instead of 4: the highest ranks leave at the end of a step"));
  hosts[1]->wait_for("[member 3] left after generation 0");
  wait_for_rank(*hosts[0], 1, 0, 3);
  // By its name, which all ranks know, although it could be a pid. A host without ranks ends.
  EXPECT_TRUE(testing::eventually([] {
    return testing::run_to_end({LOCKSTEP_PROGRAM, "resize", "4194305", "2"}).code == 0;
  }));
  EXPECT_EQ(hosts[1]->wait(), 0) << hosts[1]->out();
  wait_for_rank(*hosts[0], 2, 0, 2);
  make_file("finish");
  EXPECT_EQ(hosts[0]->wait(), 0) << hosts[0]->out();
  EXPECT_THAT(hosts[0]->out(),
              AllOf(HasSubstr("lockstep: member 3 leaves\n"),
                    HasSubstr("lockstep: 3 ranks go on (generation 1)\n"), Not(HasSubstr("lost"))));
  EXPECT_THAT(hosts[1]->out(), Not(HasSubstr("lost")));
}

TEST_F(RunCluster, IsNotResizedWithoutReason) {
  Program only(host({"--nnodes", "1", "-n", "1", "--elastic", "1:2"}));
  wait_for_rank(only, 0, 0, 1);
  const Ended asked = resize(only, 3);
  EXPECT_EQ(asked.code, 2);
  EXPECT_THAT(asked.err, HasSubstr("3 is outside of --elastic 1:2; give a number from 1 to 2"));
  EXPECT_THAT(resize(only, 1).out, HasSubstr("it is to have so many ranks already"));
  make_file("finish");
  EXPECT_EQ(only.wait(), 0) << only.out();
}

TEST_F(RunCluster, OptionsMustMakeSense) {
  const Words etcd{"--rdzv-backend", "etcd", "--rdzv-endpoint", "127.0.0.1:1"};
  const auto expect_refused = [&](const Words& base, const Words& more, const std::string& why) {
    Words options{"-n", "2"};
    options.insert(options.end(), base.begin(), base.end());
    options.insert(options.end(), more.begin(), more.end());
    options.emplace_back("true");
    const Ended ended = run(options);
    EXPECT_EQ(ended.code, 2) << why;
    EXPECT_THAT(ended.err, HasSubstr(why));
  };
  expect_refused({}, {"--rdzv-backend", "c10d"}, "--rdzv-backend \"c10d\": give one of");
  expect_refused({}, {"--elastic", "1:2", "--nnodes", "2"}, "give --rdzv-backend etcd");
  expect_refused({}, {"--rdzv-id", "x"}, "--rdzv-backend");
  expect_refused({}, {"--rdzv-backend", "etcd"}, "at which etcd serves its clients");
  expect_refused(etcd, {"--elastic", "1:2"}, "needs --rdzv-id");
  expect_refused(etcd, {"--rdzv-id", "x"}, "is for jobs with --elastic");
  expect_refused(etcd, {"--rdzv-id", "x", "--elastic", "1:2", "--node-rank", "0"},
                 "machines are numbered as they come");
  expect_refused(etcd, {"--rdzv-id", "x", "--elastic", "1:2", "--nnodes", "2"},
                 "with the 4 ranks of all machines between them");
}

TEST_F(RunCluster, AHostWithOtherOptionsIsRefused) {
  Program first(host(kTwoByOne));
  wait_for_hosts(1, 2);
  const Ended second = testing::run_to_end(host(kTwoByTwo));
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(
      second.out,
      HasSubstr("job 4194305 has --nnodes 2 --nproc-per-node 1 --elastic 1:2, and this host "
                "was given --nnodes 2 --nproc-per-node 2 --elastic 1:4"));
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM);
  EXPECT_THAT(first.out(), HasSubstr("stopped by signal 15 (SIGTERM)"));
}

TEST_F(RunCluster, AJobNeedsItsEtcd) {
  etcd_->signal(SIGKILL);
  const Ended ended = testing::run_to_end(host(kTwoByOne));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("etcd at 127.0.0.1:"));
}

// Rank 0 is on the side of etcd, or on the other one.
class CutHosts : public RunCluster {
 protected:
  void SetUp() override {
    for (const std::string& why_not : {Etcd::why_not(), Hosts::why_not()}) {
      if (!why_not.empty()) return testing::skip_or_fail(why_not);
    }
    hosts_ = std::make_unique<Hosts>(3, 1000);
    etcd_ = std::make_unique<Etcd>(Hosts::address(0),
                                   [this](Words words) { return hosts_->on(0, words); });
  }

  std::unique_ptr<Hosts> hosts_;
};

TEST_F(CutHosts, TheSideOfEtcdGoesOnAndTheOtherEndsItself) {
  Program cut(hosts_->on(1, host(kTwoByTwo)));
  ASSERT_TRUE(testing::eventually([&] {
    return occurrences(
               testing::run_to_end(hosts_->on(0, {"etcdctl", "--endpoints", etcd_->endpoint(),
                                                  "get", "--prefix", "--keys-only", "/lockstep/"}))
                   .out,
               "/hosts/") == 1;
  }));
  Program stays(hosts_->on(2, host(kTwoByTwo)));
  for (int rank : {0, 1}) wait_for_rank(cut, 0, rank, 4);
  for (int rank : {2, 3}) wait_for_rank(stays, 0, rank, 4);
  hosts_->cut(1);
  EXPECT_EQ(cut.wait(), 1);
  EXPECT_THAT(cut.out(),
              AllOf(HasSubstr("this host has lost its place in job 4194305, and its ranks "
                              "were killed"),
                    Not(HasSubstr("generation 1"))));
  for (int rank : {0, 1}) wait_for_rank(stays, 1, rank, 2);
  EXPECT_THAT(stays.out(), HasSubstr("members 0, 1 on 10.77.0.2 were lost\n"));
  make_file("finish");
  EXPECT_EQ(stays.wait(), 0) << stays.out();
}

}  // namespace
}  // namespace lockstep
