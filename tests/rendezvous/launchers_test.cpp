// SPDX-License-Identifier: BSD-3-Clause
// Who launchers say that a process is, in processes that have their variables.
#include "lockstep/rendezvous/launchers.h"

#include <fstream>

#include "support/environment.h"
#include "support/private_tmpdir.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kMpich = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "6"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "3"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                          {"SLURM_STEP_NODELIST", "node[03-05,9],other"},
                          {"SLURM_STEP_NUM_NODES", "4"},
                          {"SLURM_JOB_ID", "1000"},
                          {"SLURM_STEP_ID", "1"}};

Variables operator+(Variables left, const Variables& right) {
  for (const auto& [name, value] : right) left[name] = value;
  return left;
}

void with_environment(const Variables& variables, const std::function<void()>& expect) {
  run_ranks(1, [&](Rank&) {
    set_launcher_environment(variables);
    expect();
  });
}

struct Expected {
  int rank;
  int world_size;
  int local_rank;
  int local_world_size;
};

void expect_member(const Variables& variables, const Expected& expected) {
  with_environment(variables, [&] {
    const auto member = membership_in_environment();
    ASSERT_TRUE(member);
    EXPECT_EQ(member->rank, expected.rank);
    EXPECT_EQ(member->world_size, expected.world_size);
    EXPECT_EQ(member->local_rank, expected.local_rank);
    EXPECT_EQ(member->local_world_size, expected.local_world_size);
  });
}

TEST(Launchers, EachSaysWhichRankThisIs) {
  expect_member(kOpenMpi, {5, 8, 1, 4});
  expect_member(kMpich, {2, 4, 0, 2});
  expect_member(kSlurm, {6, 7, 0, 1});
}

TEST(Launchers, RanksOfMpirunInsideSlurmAreMpiruns) {
  expect_member(kOpenMpi + kSlurm, {5, 8, 1, 4});
}

TEST(Launchers, RanksOfAnAgentAreTheAgents) {
  expect_member(kSlurm + Variables{{"TORCHELASTIC_RUN_ID", "job"},
                                   {"RANK", "1"},
                                   {"WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "node03"},
                                   {"MASTER_PORT", "29500"}},
                {1, 2, 1, 2});
}

TEST(Launchers, VariablesThatAgreeAreOneAnswer) {
  expect_member(kSlurm + Variables{{"RANK", "6"},
                                   {"WORLD_SIZE", "7"},
                                   {"MASTER_ADDR", "node03"},
                                   {"MASTER_PORT", "29500"}},
                {6, 7, 0, 1});
}

TEST(Launchers, WhereTwoDisagreeTheErrorShowsBoth) {
  const std::vector<std::pair<Variables, std::vector<std::string>>> cases = {
      {kSlurm + Variables{{"RANK", "5"}, {"WORLD_SIZE", "7"}},
       {"rank 6 of 7 by Slurm", "RANK=5 WORLD_SIZE=7"}},
      {kOpenMpi + Variables{{"RANK", "5"}, {"WORLD_SIZE", "4"}},
       {"rank 5 of 8 by Open MPI", "RANK=5 WORLD_SIZE=4"}},
      {kOpenMpi + kMpich, {"rank 5 of 8 by Open MPI", "rank 2 of 4 by MPICH"}}};
  for (const auto& [variables, parts] : cases) {
    with_environment(variables, [&parts = parts] {
      try {
        membership_in_environment();
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        for (const auto& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
      }
    });
  }
}

TEST(Launchers, AListOfTasksThatSaysNothingOfThisNodeIsAnError) {
  for (const char* list : {"2(x3", "2(x99999999999),1", "two", "2(x3)", "2;1", "-1(x4)"}) {
    with_environment(kSlurm + Variables{{"SLURM_STEP_TASKS_PER_NODE", list}}, [list] {
      EXPECT_THAT([] { membership_in_environment(); },
                  ::testing::ThrowsMessage<UsageError>(
                      HasSubstr("SLURM_STEP_TASKS_PER_NODE=\"" + std::string(list) + "\" in the")));
    });
  }
}

TEST(Launchers, TorchrunIsToldTheFirstError) {
  const PrivateTmpdir folder;
  const std::string path = folder.path() / "error.json";
  with_environment({{"TORCHELASTIC_ERROR_FILE", path}}, [] {
    tell_torchrun("no \"data\"\nin C:\\\xff");
    tell_torchrun("a later one");
  });
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_THAT(line, ::testing::StartsWith(R"({"message": "no \"data\"?in C:\\?", "timestamp": ")"));
}

TEST(Launchers, TheFirstHostOfASlurmStepIsWhereItsRanksMeet) {
  for (const auto& [list, host] :
       {std::pair("node[03-05,9],other", "node03"), std::pair("a,b", "a"),
        std::pair("single", "single"), std::pair("gpu[01-02]-ib0", "gpu01-ib0"),
        std::pair("rack[1-2]node[1-4]", "rack1node1")}) {
    with_environment(kSlurm + Variables{{"SLURM_STEP_NODELIST", list}}, [&host = host] {
      const SlurmRendezvous rendezvous = slurm_rendezvous();
      EXPECT_EQ(rendezvous.host, host);
      EXPECT_GT(rendezvous.port, 1024);
    });
  }
  with_environment(kSlurm + Variables{{"SLURM_STEP_NUM_NODES", "1"}},
                   [] { EXPECT_EQ(slurm_rendezvous().host, "127.0.0.1"); });
}

// As with srun --distribution=arbitrary.
TEST(Launchers, RanksThatAHostfilePlacedMeetOnItsFirstHost) {
  const PrivateTmpdir folder;
  const std::string path = folder.path() / "hosts";
  std::ofstream(path) << "# two of four\n\nnode[09-10]*2\nnode03\n";
  const Variables placed = {{"SLURM_HOSTFILE", path}, {"SLURM_DISTRIBUTION", "arbitrary"}};
  with_environment(kSlurm + placed, [] { EXPECT_EQ(slurm_rendezvous().host, "node09"); });
  with_environment(kSlurm + placed + Variables{{"SLURM_DISTRIBUTION", "block"}},
                   [] { EXPECT_EQ(slurm_rendezvous().host, "node03"); });
  with_environment(kSlurm + placed + Variables{{"SLURM_HOSTFILE", path + ".gone"}},
                   [] { EXPECT_EQ(slurm_rendezvous().host, "node03"); });
}

TEST(Launchers, AListOfHostsThatSlurmCannotHaveWrittenIsAnError) {
  with_environment(kSlurm + Variables{{"SLURM_STEP_NODELIST", "node[3-1]"}}, [] {
    EXPECT_THAT([] { slurm_rendezvous(); },
                ::testing::ThrowsMessage<UsageError>(::testing::AllOf(
                    HasSubstr("SLURM_STEP_NODELIST in the environment: \"node[3-1]\" is not"),
                    HasSubstr("set MASTER_ADDR"))));
  });
}

}  // namespace
}  // namespace lockstep::testing
