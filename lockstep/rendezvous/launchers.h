// SPDX-License-Identifier: BSD-3-Clause
// The launchers that Lockstep knows by what they leave in the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A launcher whose own variables say who this process is.
struct ForeignLauncher {
  std::string name;
  std::string rank_variable;
  int rank = 0;
  std::string size_variable;
  // Not all of them say.
  std::optional<int> size;
  std::optional<int> local_rank;
  std::optional<int> local_size;
};

// Open MPI, MPICH, Slurm, Kubernetes. UsageError if a variable of theirs is not a whole number.
std::vector<ForeignLauncher> foreign_launchers();

// The one that started this process as one of several ranks. Where mpirun uses Slurm to start its
// ranks, that is mpirun; where srun speaks PMI, it is Slurm. UsageError shows both where two of the
// others disagree.
std::optional<ForeignLauncher> launcher_of_ranks();

// "rank 1 of 2 by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"
std::string in_words(const ForeignLauncher& launcher);

// Who says which rank this is: "lockstep run or spawn", "torchrun", "Open MPI", ...
std::string launcher_of_environment();

// Whether `lockstep run` or spawn started this process.
bool started_by_lockstep();

// Whether an agent that set RANK and WORLD_SIZE (`lockstep run`, torchrun) started this process:
// what launchers outside of it say is then about the agent.
bool started_by_agent();

// For a rank that fails by itself: leaves the error where torchrun looks for it, so that torchrun
// names this rank as the root cause and not the first one that it happens to look at. Does nothing
// under other launchers, or if there is an error already.
void tell_torchrun(std::string_view error);

// Where the ranks of a Slurm step can meet: the first of its hosts, and a port that follows from
// the numbers of job and step.
struct SlurmRendezvous {
  std::string host;
  std::uint16_t port;
};
// UsageError if Slurm's variables do not say it.
SlurmRendezvous slurm_rendezvous();

}  // namespace lockstep
