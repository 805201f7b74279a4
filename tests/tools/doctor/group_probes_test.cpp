// SPDX-License-Identifier: BSD-3-Clause
// How ranks can form a group, as far as processes with a launcher's variables can tell.
#include "support/captured_warnings.h"
#include "support/environment.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/rendezvous/local_store_server.h"
#include "tools/doctor/probes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

// Probes in a process of its own, with these variables of launchers and no others.
void with_environment(const Variables& variables,
                      const std::function<void(const Finding&)>& expect) {
  run_ranks(1, [&](Rank&) {
    set_launcher_environment(variables);
    expect(probe_environment());
  });
}

const Variables kTwoRanks = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(EnvironmentProbe, NothingSetIsAGroupOfOne) {
  with_environment({}, [](const Finding& finding) {
    EXPECT_EQ(finding.state, Finding::State::ok);
    EXPECT_EQ(finding.found, "no RANK or WORLD_SIZE: a group of one");
  });
}

TEST(EnvironmentProbe, NamesTheRankAndWhoSetIt) {
  with_environment(kTwoRanks, [](const Finding& finding) {
    EXPECT_EQ(finding.state, Finding::State::ok) << finding.found;
    EXPECT_EQ(finding.found,
              "rank 1 of 2, local rank 1 of 2, by hand or a script: RANK=1 WORLD_SIZE=2 "
              "MASTER_ADDR=node0 MASTER_PORT=29500");
  });
  with_environment(with(kTwoRanks, {{"TORCHELASTIC_RUN_ID", "none"},
                                    {"LOCAL_RANK", "0"},
                                    {"LOCAL_WORLD_SIZE", "1"},
                                    {"SLURM_PROCID", "5"},
                                    {"SLURM_STEP_NUM_TASKS", "8"}}),
                   [](const Finding& finding) {
                     EXPECT_EQ(finding.state, Finding::State::note) << finding.found;
                     EXPECT_THAT(finding.advice, HasSubstr("without a secret"));
                     EXPECT_THAT(finding.found, AllOf(HasSubstr("local rank 0 of 1, by torchrun"),
                                                      HasSubstr("rank 5 of 8 by Slurm")));
                   });
}

TEST(EnvironmentProbe, WhatInitProcessGroupRefusesIsBrokenInItsWords) {
  const std::vector<Variables> refused = {
      {{"RANK", "0"}},
      {{"LOCAL_RANK", "0"}},
      with(kTwoRanks, {{"RANK", "one"}}),
      with(kTwoRanks, {{"RANK", "2"}}),
      with(kTwoRanks, {{"WORLD_SIZE", "0"}}),
      with(kTwoRanks, {{"MASTER_PORT", ""}}),
      with(kTwoRanks, {{"MASTER_PORT", "http"}}),
      with(kTwoRanks, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
  };
  for (const auto& variables : refused) {
    with_environment(variables, [](const Finding& finding) {
      EXPECT_EQ(finding.state, Finding::State::broken) << finding.found;
      EXPECT_THAT(finding.advice, HasSubstr("correct that, or unset"));
      try {
        init_process_group();
        ADD_FAILURE() << "it joined, but the finding was " << finding.found;
      } catch (const UsageError& error) {
        EXPECT_EQ(finding.found, error.what());
      }
    });
  }
}

TEST(EnvironmentProbe, AsksWhetherTheLauncherIsStillThere) {
  run_ranks(1, [](Rank& rank) {
    const Variables variables = {
        {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", rank.folder() + "/store"}};
    set_launcher_environment(variables);
    const Finding finding = probe_environment();
    EXPECT_EQ(finding.state, Finding::State::broken);
    EXPECT_THAT(finding.found,
                AllOf(HasSubstr(rank.folder() + "/store"), HasSubstr("has the launcher ended?")));
    EXPECT_THAT(finding.advice, HasSubstr("by lockstep run or spawn"));
  });
  run_ranks(1, [](Rank&) {
    const LocalStoreServer server;
    set_launcher_environment(
        {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", server.path()}});
    const Finding finding = probe_environment();
    EXPECT_EQ(finding.state, Finding::State::ok) << finding.found;
    EXPECT_THAT(finding.found, HasSubstr("rank 0 of 2, local rank 0 of 2, by lockstep run"));
  });
}

TEST(EnvironmentProbe, RanksOfAnotherLauncherAreRanks) {
  const std::vector<std::pair<Variables, std::string>> jobs = {
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "rank 1 of 2 by Open MPI"},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}, "rank 0 of 4 by MPICH"},
      {{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}, "rank 3 of 4 by Slurm"}};
  for (const auto& [variables, words] : jobs) {
    with_environment(with(variables, {{"SLURM_STEP_NODELIST", "node[3-7,9]"},
                                      {"SLURM_JOB_ID", "42"},
                                      {"SLURM_STEP_ID", "0"}}),
                     [&words = words](const Finding& finding) {
                       EXPECT_EQ(finding.state, Finding::State::ok) << finding.found;
                       EXPECT_THAT(finding.found, HasSubstr(words));
                     });
  }
  with_environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, [](const Finding& finding) {
    EXPECT_EQ(finding.state, Finding::State::ok) << finding.found;
    EXPECT_THAT(finding.advice, IsEmpty());
  });
  // Neither a job with an index nor a batch script need be one of several ranks.
  for (const char* index : {"JOB_COMPLETION_INDEX", "SLURM_PROCID"}) {
    with_environment({{index, "0"}}, [](const Finding& finding) {
      EXPECT_EQ(finding.state, Finding::State::note) << finding.found;
    });
  }
}

Finding probe_with(const std::map<std::string, std::string>& variables) {
  set_launcher_environment(variables);
  return probe_auto_backend();
}

// With a GPU for each rank auto would choose nccl, so these tests hide the GPUs.
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

// Two ranks on one core are fine for a probe.
TEST(ThreadBackendProbe, DoesNotWarnOnOneCore) {
  run_ranks(1, [](Rank&) {
    pin_to_cores({allowed_cores().back()});
    const CapturedWarnings warnings;
    EXPECT_EQ(probe_thread_backend().state, Finding::State::ok);
    EXPECT_TRUE(warnings.messages().empty());
  });
}

}  // namespace
}  // namespace lockstep::testing
