// SPDX-License-Identifier: BSD-3-Clause
// The launchers that Lockstep knows by what they leave in the environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// A launcher whose own variables say who this process is; init_process_group does not read them.
struct ForeignLauncher {
  std::string name;
  std::string rank_variable;
  int rank = 0;
  std::string size_variable;
  // Not all of them say.
  std::optional<int> size;
};

// Open MPI, MPICH, Slurm, Kubernetes. UsageError if a variable of theirs is not a whole number.
std::vector<ForeignLauncher> foreign_launchers();

// "rank 1 of 2 by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"
std::string in_words(const ForeignLauncher& launcher);

// Who set RANK and WORLD_SIZE.
std::string launcher_of_environment();

}  // namespace lockstep
