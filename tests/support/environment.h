// SPDX-License-Identifier: BSD-3-Clause
// The environment variables of launchers, as a test wants them.
#pragma once

#include <map>
#include <string>

#include <stdlib.h>

namespace lockstep::testing {

// Sets these, and unsets what launchers set otherwise. To be called in a rank process.
inline void set_launcher_environment(const std::map<std::string, std::string>& variables) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "LOCKSTEP_STORE", "LOCKSTEP_LAUNCHER", "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
        "JOB_COMPLETION_INDEX"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace lockstep::testing
