// SPDX-License-Identifier: BSD-3-Clause
// Reads the launchers' variables, and decides which launcher counts.
#include "lockstep/rendezvous/launchers.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/number.h"
#include "lockstep/rendezvous/hostlist.h"

namespace lockstep {
namespace {

struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// Slurm sets SLURM_NTASKS for batch scripts too, which are not ranks; it sets SLURM_STEP_NUM_TASKS
// only for processes that srun starts.
constexpr Variables kKnown[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH or another PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
    {"Kubernetes", "JOB_COMPLETION_INDEX", "", "", ""},
};

// Reads "2(x3),1": two tasks on each of the first three nodes, one on the last. nullopt if the list
// does not cover this node.
std::optional<int> entry_of(const std::string& list, int node) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::optional<int> times = 1;
    if (const auto at = entry.find("(x"); at != std::string::npos && entry.ends_with(')')) {
      times = parse_number(std::string_view(entry).substr(at + 2, entry.size() - at - 3), kFrom1);
      entry.resize(at);
    }
    const auto tasks = parse_number(entry, kFrom1);
    if (!tasks || !times) return std::nullopt;
    if (node < *times) return tasks;
    node -= *times;
  }
  return std::nullopt;
}

std::optional<int> slurm_local_size() {
  constexpr const char* kName = "SLURM_STEP_TASKS_PER_NODE";
  const auto list = environment(kName);
  const auto node = environment_int("SLURM_NODEID");
  if (!list || !node) return std::nullopt;
  if (const auto tasks = entry_of(*list, *node)) return tasks;
  throw UsageError(fmt::format(
      "{}=\"{}\" in the environment does not say how many tasks node {} of the step has, "
      "as in 2(x3),1; unset it, and all ranks count as ranks of one host",
      kName, *list, *node));
}

// With --distribution=arbitrary, rank 0 is on the first host of this file, and the step's list is
// sorted. The host may be followed by the number of its tasks, as in node7*2.
std::string first_line_of_hostfile() {
  const auto path = environment("SLURM_HOSTFILE");
  if (!path || environment("SLURM_DISTRIBUTION") != "arbitrary") return "";
  std::ifstream file(*path);
  std::string line;
  while (std::getline(file, line) && (line.empty() || line.starts_with('#'))) {
  }
  return line.substr(0, line.find('*'));
}

std::string first_host(const char* variable, const std::string& list) try {
  return expand_hostlist(list, 1).front();
} catch (const UsageError& error) {
  ErrorDetails details = error.details();
  details.cause = fmt::format("{} in the environment: {}", variable, details.cause);
  details.remedy =
      "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port that is free there";
  throw UsageError(std::move(details));
}

bool disagree(const ForeignLauncher& left, const ForeignLauncher& right) {
  return left.rank != right.rank || left.size != right.size;
}

}  // namespace

std::vector<ForeignLauncher> foreign_launchers() {
  std::vector<ForeignLauncher> found;
  for (const auto& variables : kKnown) {
    const auto rank = environment_int(variables.rank);
    if (!rank) continue;
    ForeignLauncher launcher{.name = variables.launcher,
                             .rank_variable = variables.rank,
                             .rank = *rank,
                             .size_variable = variables.size,
                             .size = environment_int(variables.size, kFrom1),
                             .local_rank = environment_int(variables.local_rank),
                             .local_size = environment_int(variables.local_size, kFrom1)};
    if (launcher.name == "Slurm") launcher.local_size = slurm_local_size();
    found.push_back(std::move(launcher));
  }
  return found;
}

std::optional<ForeignLauncher> launcher_of_ranks() {
  std::vector<ForeignLauncher> launchers = foreign_launchers();
  std::erase_if(launchers,
                [](const ForeignLauncher& launcher) { return launcher.size.value_or(1) < 2; });
  if (launchers.empty()) return std::nullopt;
  for (const auto& other : launchers) {
    if (other.name == "Slurm" || !disagree(launchers.front(), other)) continue;
    throw UsageError(fmt::format("this process is {}, but {}; start it with one launcher",
                                 in_words(launchers.front()), in_words(other)));
  }
  // Slurm's own PMI sets PMI's variables too, but then the ranks need no MPI to find each other.
  const auto slurm = std::ranges::find(launchers, "Slurm", &ForeignLauncher::name);
  const bool by_srun = slurm != launchers.end() && launchers.front().rank_variable == "PMI_RANK" &&
                       !disagree(launchers.front(), *slurm);
  return by_srun ? *slurm : launchers.front();
}

std::string in_words(const ForeignLauncher& launcher) {
  if (!launcher.size) {
    return fmt::format("rank {} by {} ({})", launcher.rank, launcher.name, launcher.rank_variable);
  }
  return fmt::format("rank {} of {} by {} ({}, {})", launcher.rank, *launcher.size, launcher.name,
                     launcher.rank_variable, launcher.size_variable);
}

bool started_by_agent() {
  return environment("LOCKSTEP_STORE") || environment("TORCHELASTIC_RUN_ID");
}

bool started_by_lockstep() {
  // Empty in ranks that run on several machines.
  return std::getenv("LOCKSTEP_STORE") != nullptr;
}

std::string launcher_of_environment() {
  // Lockstep's ranks also have torchrun's variables.
  if (started_by_lockstep()) return "lockstep run or spawn";
  if (environment("TORCHELASTIC_RUN_ID")) return "torchrun";
  if (environment("RANK")) return "hand or a script";
  const auto launcher = launcher_of_ranks();
  return launcher ? launcher->name : "hand or a script";
}

void tell_torchrun(std::string_view error) {
  const auto path = environment("TORCHELASTIC_ERROR_FILE");
  std::error_code ignored;
  if (!path || started_by_lockstep() || std::filesystem::exists(*path, ignored)) return;
  std::string text;
  for (const char c : error) {
    if (c == '"' || c == '\\') text += '\\';
    // torchrun reads UTF-8 and gives up on anything else.
    text += c < ' ' || c > '~' ? '?' : c;
  }
  // torchrun compares whole seconds and picks the earliest failure. Ranks that end because of this
  // one get the time at which torchrun notices them.
  const auto now = std::chrono::system_clock::now() - std::chrono::seconds(1);
  std::ofstream(*path) << fmt::format(
      R"({{"message": "{}", "timestamp": "{}"}})", text,
      std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count());
}

SlurmRendezvous slurm_rendezvous() {
  constexpr const char* kHosts = "SLURM_STEP_NODELIST";
  const auto hosts = environment(kHosts);
  const auto job = environment_int("SLURM_JOB_ID");
  const auto step = environment_int("SLURM_STEP_ID");
  if (!hosts || !job || !step) {
    throw UsageError(
        "Slurm started this rank, but SLURM_STEP_NODELIST, SLURM_JOB_ID or SLURM_STEP_ID is not "
        "set; set MASTER_ADDR and MASTER_PORT");
  }
  constexpr int kFirstPort = 20'000;
  constexpr int kPorts = 10'000;
  const bool one_host = environment_int("SLURM_STEP_NUM_NODES") == 1;
  const std::string listed_first = first_line_of_hostfile();
  const std::string host = listed_first.empty() ? first_host(kHosts, *hosts)
                                                : first_host("SLURM_HOSTFILE", listed_first);
  return {one_host ? "127.0.0.1" : host,
          static_cast<std::uint16_t>(kFirstPort + (*job * 64LL + *step) % kPorts)};
}

}  // namespace lockstep
