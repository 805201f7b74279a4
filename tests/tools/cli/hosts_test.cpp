// SPDX-License-Identifier: BSD-3-Clause
// Training on two hosts with two ranks each, as a script without any launcher starts it.
#include "support/hosts.h"

#include <memory>
#include <thread>

#include "support/program.h"
#include "support/skip_or_fail.h"
#include "tests/tools/recipes/tiny_images.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using Ranks = std::vector<std::unique_ptr<Program>>;

constexpr int kHosts = 2;
constexpr int kRanksPerHost = 2;
constexpr int kRanks = kHosts * kRanksPerHost;

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why_not = Hosts::why_not();
    if (!why_not.empty()) return skip_or_fail(why_not);
    hosts_ = std::make_unique<Hosts>(kHosts, 1000);
    write_tiny_images(folder_, 2048);
  }

  Ranks train(const std::vector<std::string>& options,
              const std::string& rank_0 = Hosts::address(0)) const {
    Ranks ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> command{"env",
                                       "RANK=" + std::to_string(rank),
                                       "WORLD_SIZE=" + std::to_string(kRanks),
                                       "LOCAL_RANK=" + std::to_string(rank % kRanksPerHost),
                                       "LOCAL_WORLD_SIZE=" + std::to_string(kRanksPerHost),
                                       "MASTER_ADDR=" + rank_0,
                                       "MASTER_PORT=29500",
                                       "OMP_NUM_THREADS=1",
                                       LOCKSTEP_PROGRAM,
                                       "train",
                                       "mlp",
                                       "--data",
                                       folder_.path().string(),
                                       "--batch-size",
                                       "32"};
      command.insert(command.end(), options.begin(), options.end());
      ranks.push_back(std::make_unique<Program>(hosts_->on(rank / kRanksPerHost, command)));
    }
    return ranks;
  }

  // What rank 0 prints as JSON; all ranks must end well.
  static Json result_of(Ranks& ranks) {
    for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << rank->err();
    return Json::parse(ranks[0]->out());
  }

  double loss_after(const std::vector<std::string>& options) const {
    std::vector<std::string> all{"--json"};
    all.insert(all.end(), options.begin(), options.end());
    Ranks ranks = train(all);
    return result_of(ranks)["loss"].get<double>();
  }

  TemporaryFolder folder_;
  std::unique_ptr<Hosts> hosts_;
};

TEST_F(TwoHosts, AutoTakesTheHierarchicalGroup) {
  Ranks ranks = train({"--epochs", "1"});
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << rank->err();
  EXPECT_THAT(ranks[0]->out(), HasSubstr("over hierarchical (the ranks are on 2 hosts)"));
}

// As on a machine whose /etc/hosts Debian wrote.
TEST_F(TwoHosts, RankZerosOwnNameMayLeadToLoopbackAtHome) {
  hosts_->name(0, "master", "127.0.1.1");
  hosts_->name(1, "master", Hosts::address(0));
  Ranks ranks = train({"--epochs", "1", "--json"}, "master");
  EXPECT_GT(result_of(ranks)["loss"].get<double>(), 0);
}

// As on a machine that knows more addresses of its own name than the name server.
TEST_F(TwoHosts, RankZerosOwnNameMayAlsoLeadToLoopback) {
  for (const std::string& address : {std::string("127.0.1.1"), Hosts::address(0)}) {
    hosts_->name(0, "master", address);
  }
  hosts_->name(1, "master", Hosts::address(0));
  Ranks ranks = train({"--epochs", "1", "--json"}, "master");
  EXPECT_GT(result_of(ranks)["loss"].get<double>(), 0);
}

// A ring over the hosts sends 2 (H - 1) / H of the gradients from each: for two, as much as they
// are, however many ranks a host has. With one copy of the parameters on each host, half of it are
// their new values.
TEST_F(TwoHosts, TheNetworkCarriesWhatTheRingNeeds) {
  for (const bool one_copy : {false, true}) {
    SCOPED_TRACE(one_copy ? "one copy" : "a copy on each rank");
    const auto bytes_of = [&](const char* epochs) {
      const std::int64_t before = hosts_->bytes_sent(0);
      std::vector<std::string> options{"--epochs", epochs, "--json"};
      if (one_copy) options.emplace_back("--one-copy");
      Ranks ranks = train(options);
      result_of(ranks);
      return static_cast<double>(hosts_->bytes_sent(0) - before);
    };
    // What joining and the first epoch's plan need goes off.
    const double bytes = bytes_of("4") - bytes_of("1");
    const double steps = 3 * 2048.0 / (kRanks * 32);
    const double gradients = 203'530 * sizeof(float);
    EXPECT_GE(bytes / steps, gradients);
    // TCP's headers, the acknowledgements of what comes in, and small messages.
    EXPECT_LE(bytes / steps, 1.15 * gradients);
  }
}

TEST_F(TwoHosts, EveryBackendTrainsTheSameNet) {
  EXPECT_NEAR(loss_after({"--epochs", "2", "--backend", "hierarchical"}),
              loss_after({"--epochs", "2", "--backend", "gloo"}), 1e-4);
}

TEST_F(TwoHosts, OneCopyOnEachTrainsToTheLossOfACopyOnEachRank) {
  EXPECT_NEAR(loss_after({"--epochs", "2", "--one-copy"}), loss_after({"--epochs", "2"}), 1e-4);
}

TEST_F(TwoHosts, AQueueThatIsTooShortLosesPacketsAndNothingElse) {
  const double without = loss_after({"--epochs", "1"});
  for (int host = 0; host < kHosts; ++host) {
    ASSERT_TRUE(hosts_->shape(host, "tbf rate 200mbit burst 20kb limit 30kb"));
  }
  EXPECT_EQ(loss_after({"--epochs", "1"}), without);
  EXPECT_GT(hosts_->packets_dropped(0), 0);
}

TEST_F(TwoHosts, LatencyAndLossChangeNoResult) {
  const double without = loss_after({"--epochs", "1"});
  for (int host = 0; host < kHosts; ++host) {
    if (!hosts_->shape(host, "netem delay 5ms 2ms loss 1%")) GTEST_SKIP() << "no netem here";
  }
  EXPECT_EQ(loss_after({"--epochs", "1"}), without);
}

TEST_F(TwoHosts, ACutLinkEndsEveryRankWithinSeconds) {
  Ranks ranks = train({"--epochs", "100000"});
  ranks[0]->wait_for("epoch 2/");
  const auto begin = std::chrono::steady_clock::now();
  hosts_->cut(1);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->wait(), 1) << "rank " << rank;
    const std::string err = ranks[static_cast<std::size_t>(rank)]->err();
    // Each host sees the other one go, and cannot know that nobody there has died.
    EXPECT_THAT(err, rank < kRanksPerHost
                         ? AnyOf(HasSubstr("rank 2 (pid"), HasSubstr("rank 3 (pid"))
                         : AnyOf(HasSubstr("rank 0 (pid"), HasSubstr("rank 1 (pid")));
    EXPECT_THAT(err,
                AllOf(HasSubstr("it died, or the network failed"), Not(HasSubstr("died before"))));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// Each host's launcher is told which of the two it is.
TEST_F(TwoHosts, LaunchersOfAStaticCluster) {
  Ranks launchers;
  for (int host = 0; host < kHosts; ++host) {
    launchers.push_back(std::make_unique<Program>(hosts_->on(host, {LOCKSTEP_PROGRAM,
                                                                    "run",
                                                                    "-n",
                                                                    "2",
                                                                    "--nnodes",
                                                                    "2",
                                                                    "--node-rank",
                                                                    std::to_string(host),
                                                                    "--rdzv-endpoint",
                                                                    Hosts::address(0) + ":29500",
                                                                    "--",
                                                                    LOCKSTEP_PROGRAM,
                                                                    "train",
                                                                    "mlp",
                                                                    "--data",
                                                                    folder_.path().string(),
                                                                    "--batch-size",
                                                                    "32",
                                                                    "--epochs",
                                                                    "100000"})));
  }
  launchers[0]->wait_for("[rank 0] epoch 2/");
  EXPECT_THAT(launchers[0]->out(), HasSubstr("4 ranks with 1 thread on cpu"));
  EXPECT_THAT(launchers[0]->out(), HasSubstr("over hierarchical"));
  // The ranks of the other host end by themselves, and its launcher says so.
  launchers[1]->signal(SIGTERM);
  EXPECT_EQ(launchers[1]->wait(), 128 + SIGTERM);
  EXPECT_EQ(launchers[0]->wait(), 1);
  EXPECT_THAT(
      launchers[0]->err(),
      AnyOf(HasSubstr("lockstep run: rank 2 of 4, on another machine, failed first: rank "),
            HasSubstr("lockstep run: rank 3 of 4, on another machine, failed first: rank ")));
}

TEST_F(TwoHosts, ARankThatDiesOnOneHostEndsTheOther) {
  Ranks ranks = train({"--epochs", "100000"});
  ranks[0]->wait_for("epoch 2/");
  ranks[3]->signal(SIGKILL);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->wait(), 1);
    EXPECT_THAT(ranks[static_cast<std::size_t>(rank)]->err(), HasSubstr("rank 3 (pid"));
  }
}

}  // namespace
}  // namespace lockstep::testing
