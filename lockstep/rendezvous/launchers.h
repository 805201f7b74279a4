// SPDX-License-Identifier: BSD-3-Clause
// Recognizes launchers by the variables that they set in the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A launcher with variables of its own that give this process's rank.
struct ForeignLauncher {
  std::string name;
  std::string rank_variable;
  int rank = 0;
  std::string size_variable;
  // nullopt if the launcher does not set the variable.
  std::optional<int> size;
  std::optional<int> local_rank;
  std::optional<int> local_size;
};

// Looks for Open MPI, MPICH, Slurm and Kubernetes. UsageError if one of their variables is not a
// whole number.
std::vector<ForeignLauncher> foreign_launchers();

// The launcher that started this process as one of several ranks. If mpirun starts its ranks
// through Slurm, mpirun; if srun sets PMI's variables, Slurm. UsageError names both if two other
// launchers disagree.
std::optional<ForeignLauncher> launcher_of_ranks();

// "rank 1 of 2 by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"
std::string in_words(const ForeignLauncher& launcher);

// The source of this process's rank: "lockstep run or spawn", "torchrun", "Open MPI", ...
std::string launcher_of_environment();

// Whether `lockstep run` or spawn started this process.
bool started_by_lockstep();

// Whether an agent that sets RANK and WORLD_SIZE (`lockstep run`, torchrun) started this process.
// The variables of launchers outside it then describe the agent.
bool started_by_agent();

// For a rank that fails by itself: writes the error where torchrun looks for it, so that torchrun
// reports this rank as the root cause. Does nothing under other launchers, or if an error is
// already there.
void tell_torchrun(std::string_view error);

// The address for the ranks of a Slurm step: the first of its hosts (of SLURM_HOSTFILE, if srun
// placed ranks by it), and a port derived from the job and step ids.
struct SlurmRendezvous {
  std::string host;
  std::uint16_t port;
};
// UsageError if Slurm's variables do not give it.
SlurmRendezvous slurm_rendezvous();

}  // namespace lockstep
