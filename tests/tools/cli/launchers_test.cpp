// SPDX-License-Identifier: BSD-3-Clause
// Training under each launcher, and what it says when a rank is killed.
#include <csignal>

#include "support/free_port.h"
#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "tests/tools/recipes/tiny_images.h"
#include <gmock/gmock.h>

namespace lockstep::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

struct Launcher {
  std::string name;
  // Starts the command that follows as two ranks.
  Words command;
  // Why it cannot do so here; empty if it can.
  std::function<std::string()> why_not;
  // Its name for `lockstep doctor`, and how it says that rank 1 was killed: regular expressions.
  std::string called;
  std::string last_words;
  std::string backend = "auto";
};

// For the name of the test.
void PrintTo(const Launcher& launcher, std::ostream* stream) {
  *stream << launcher.name;
}

std::string nothing() {
  return "";
}

std::string why_no_mpirun() {
  return *LOCKSTEP_MPIRUN != '\0' ? "" : "Lockstep was built without MPI";
}

// The ranks use the store that torchrun serves, and libtorch's versions do not understand each
// other's.
std::string why_no_torchrun() {
  return *LOCKSTEP_TORCHRUN != '\0'
             ? ""
             : "there is no torchrun of the libtorch in use that serves a store";
}

std::string why_no_slurm() {
  Program probe({LOCKSTEP_IN_SLURM, "true"});
  return probe.wait() == 0 ? "" : probe.err();
}

// Open MPI refuses to run as root, and more ranks than cores, unless told otherwise; from version 5
// on PRRTE is what has to be told.
Launcher open_mpi(const std::string& backend) {
  return {.name = "mpirun_" + backend,
          .command = {"env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                      "OMPI_MCA_rmaps_base_oversubscribe=1",
                      "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe", LOCKSTEP_MPIRUN, "-n",
                      "2"},
          .why_not = why_no_mpirun,
          .called = "Open MPI",
          .last_words = "process rank 1 with PID",
          .backend = backend};
}

// It kills the other ranks at once, most often before they can say who died; with
// -disable-auto-cleanup too, and then it names nobody.
Launcher mpich(const std::string& backend) {
  return {.name = "mpirun_" + backend,
          .command = {LOCKSTEP_MPIRUN, "-n", "2"},
          .why_not = nothing,
          .called = "MPICH",
          .last_words = "PID [0-9]+ RUNNING AT",
          .backend = backend};
}

Launcher mpirun(const std::string& backend) {
  return std::string_view(LOCKSTEP_MPIRUN).ends_with(".mpich") ? mpich(backend) : open_mpi(backend);
}

// Debian 12's version needs underscores, and fails without redirects.
Launcher torchrun() {
  return {.name = "torchrun",
          .command = {LOCKSTEP_TORCHRUN, "--no_python", "--nproc_per_node=2",
                      "--master_port=" + std::to_string(free_port()), "--redirects=1", "--tee=1"},
          .why_not = why_no_torchrun,
          .called = "torchrun",
          .last_words = "rank +: 1 \\(local_rank: 1\\)[[:space:]]+exitcode +: -9"};
}

Launcher srun(int nodes) {
  return {.name = "srun_on_" + std::to_string(nodes),
          .command = {LOCKSTEP_IN_SLURM, "srun", "-n", "2", "-N", std::to_string(nodes)},
          .why_not = why_no_slurm,
          .called = "Slurm",
          .last_words = "task 1: Killed"};
}

class Launchers : public ::testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    const std::string why_not = GetParam().why_not();
    if (!why_not.empty()) return skip_or_fail(why_not);
    ::setenv("LOCKSTEP_TEST_MARK", mark_.c_str(), 1);
    write_tiny_images(folder_, 2048);
  }

  // What a launcher leaves behind that was killed by a test that failed.
  void TearDown() override { kill_all({marked_}); }

  static void kill_all(const Words& variables) {
    for (const pid_t pid : processes_with(variables)) ::kill(pid, SIGKILL);
  }

  static Program start(const Words& arguments) {
    Words command = GetParam().command;
    command.push_back(LOCKSTEP_PROGRAM);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return Program(command);
  }

  Program train(const std::string& epochs) const {
    return start({"train", "mlp", "--batch-size", "32", "--data", folder_.path().string(),
                  "--backend", GetParam().backend, "--epochs", epochs});
  }

  void kill_rank_1() const {
    for (const char* rank : {"RANK=1", "OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1", "SLURM_PROCID=1"}) {
      kill_all({marked_, rank});
    }
  }

 private:
  const PrivateTmpdir tmpdir_;
  const std::string mark_ = unique_mark();
  const std::string marked_ = "LOCKSTEP_TEST_MARK=" + mark_;
  TemporaryFolder folder_;
};

TEST_P(Launchers, TellsEachRankItsNumber) {
  Program job = start({"doctor"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(job.out(), ContainsRegex(std::string("rank ") + rank + " of 2, local rank .* by (" +
                                         GetParam().called + ")"));
  }
}

TEST_P(Launchers, Trains) {
  Program job = train("2");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("2 ranks with "));
  EXPECT_THAT(job.out(), HasSubstr("epoch 2/2: mean loss"));
  EXPECT_THAT(job.out(), HasSubstr("test accuracy"));
}

TEST_P(Launchers, NamesTheRankThatWasKilled) {
  Program job = train("100000");
  job.wait_for("epoch 2/");
  const auto begin = std::chrono::steady_clock::now();
  kill_rank_1();
  EXPECT_NE(job.wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(job.out() + job.err(), ContainsRegex(GetParam().last_words));
}

INSTANTIATE_TEST_SUITE_P(, Launchers,
                         ::testing::Values(Launcher{.name = "lockstep_run",
                                                    .command = {LOCKSTEP_PROGRAM, "run", "-n", "2"},
                                                    .why_not = nothing,
                                                    .called = "lockstep run",
                                                    .last_words = "rank 1 of 2 \\(pid"},
                                           mpirun("auto"), mpirun("mpi"), torchrun(), srun(1),
                                           srun(2)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
