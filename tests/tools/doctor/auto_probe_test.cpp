// SPDX-License-Identifier: BSD-3-Clause
// Diagnoses the backend that "auto" chooses.
#include "support/environment.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>

#include "tools/doctor/probes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Finding probe_with(const std::map<std::string, std::string>& variables) {
  set_launcher_environment(variables);
  return probe_auto();
}

// Where each rank had a GPU it would be nccl, so these look at a machine without one.
void without_gpus(const std::function<void()>& function) {
  run_ranks(1, [&](Rank&) {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    function();
  });
}

TEST(AutoProbe, SaysWhatRanksOfThisMachineWouldGet) {
  without_gpus([] {
    const Finding finding = probe_with({});
    EXPECT_EQ(finding.state, Finding::State::ok);
    EXPECT_THAT(finding.found,
                AllOf(HasSubstr("2 ranks on this machine: shm (all ranks share this machine)"),
                      HasSubstr("hierarchical (the ranks are on 2 hosts)")));
  });
}

TEST(AutoProbe, KnowsTheRanksOfALauncher) {
  without_gpus([] {
    const auto rank_0_of = [](const std::string& ranks, const std::string& local_ranks) {
      return probe_with({{"RANK", "0"},
                         {"WORLD_SIZE", ranks},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", local_ranks},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"}})
          .found;
    };
    EXPECT_EQ(rank_0_of("1", "1"), "self (there is one rank)");
    EXPECT_EQ(rank_0_of("4", "4"), "shm (all ranks share this machine)");
    EXPECT_EQ(rank_0_of("4", "2"), "hierarchical (the ranks are on 2 hosts)");
    EXPECT_EQ(rank_0_of("4", "3"), "hierarchical (the ranks are on 2 hosts)");
    EXPECT_EQ(rank_0_of("4", "1"), "gloo (the ranks are on 4 hosts)");
  });
}

TEST(AutoProbe, KnowsNothingOfABrokenEnvironment) {
  without_gpus([] {
    const Finding finding = probe_with({{"RANK", "0"}});
    EXPECT_EQ(finding.state, Finding::State::note);
    EXPECT_THAT(finding.found, HasSubstr("environment is broken"));
  });
}

}  // namespace
}  // namespace lockstep::testing
