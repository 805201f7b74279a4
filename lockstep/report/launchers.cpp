// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/report/launchers.h"

#include <fmt/format.h>

#include "lockstep/core/environment.h"

namespace lockstep {
namespace {

struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
};

// Slurm sets SLURM_NTASKS for a batch script too, which is no rank; this one only for what srun
// starts.
constexpr Variables known[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"MPICH or another PMI", "PMI_RANK", "PMI_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"Kubernetes", "JOB_COMPLETION_INDEX", ""},
};

}  // namespace

std::vector<ForeignLauncher> foreign_launchers() {
  std::vector<ForeignLauncher> found;
  for (const auto& [launcher, rank_variable, size_variable] : known) {
    if (const auto rank = environment_int(rank_variable)) {
      found.push_back(
          {launcher, rank_variable, *rank, size_variable, environment_int(size_variable)});
    }
  }
  return found;
}

std::string in_words(const ForeignLauncher& launcher) {
  if (!launcher.size) {
    return fmt::format("rank {} by {} ({})", launcher.rank, launcher.name, launcher.rank_variable);
  }
  return fmt::format("rank {} of {} by {} ({}, {})", launcher.rank, *launcher.size, launcher.name,
                     launcher.rank_variable, launcher.size_variable);
}

std::string launcher_of_environment() {
  // Lockstep's ranks have torchrun's variables as well.
  if (environment("LOCKSTEP_STORE")) return "lockstep run or spawn";
  if (environment("TORCHELASTIC_RUN_ID")) return "torchrun";
  return "hand or a script";
}

}  // namespace lockstep
