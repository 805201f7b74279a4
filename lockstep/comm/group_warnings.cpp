// SPDX-License-Identifier: BSD-3-Clause
// Looks at the terminal, the launchers' variables, and the ranks' affinity masks.
#include "lockstep/comm/group_warnings.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/launch/start_method.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// A rank that reruns main repeats its parent's calls, including those that warn.
bool repeats_its_parent() {
  return pending_start() != nullptr;
}

// One flag, so that it warns once whatever the kind of ranks.
void warn_if_oversubscribed(const char* function, int ranks, int cores) {
  const std::string warning = oversubscription(ranks, cores);
  if (warning.empty()) return;
  static std::atomic_flag warned;
  libtorch::warn_once(warned, function, warning);
}

}  // namespace

void warn_of_group_of_one(at::Device device) {
  const bool watched = ::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1;
  if (!watched || repeats_its_parent() || !foreign_launchers().empty()) return;
  const int units = device.is_cuda() ? device_count(at::kCUDA) : available_cores();
  if (units < 2) return;
  static std::atomic_flag warned;
  libtorch::warn_once(
      warned, "init_process_group",
      fmt::format("this process is a group of one, and could use {0} {1}: `lockstep run -n {0} "
                  "{2}` starts {0} ranks. If one rank is intended, say so: "
                  "init_process_group({{.world_size = 1}})",
                  units, device.is_cuda() ? "GPUs" : "cores", program_invocation_name));
}

void spare_busy_cores() {
  const int threads = at::get_num_threads();
  if (threads == 1 || repeats_its_parent()) return;
  for (const char* name : {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    if (environment(name)) return;
  }
  const auto idle = idle_cores(std::chrono::milliseconds(100));
  if (!idle || *idle >= 0.75 * threads) return;
  const int fitting = std::max(1, static_cast<int>(*idle + 0.5));
  at::set_num_threads(fitting);
  limit_loaded_threads(fitting);
  static std::atomic_flag warned;
  libtorch::warn_once(
      warned, "init_process_group",
      fmt::format(
          "other programs use the cores, and {} threads would take turns with them and spin while "
          "they wait: libtorch gets {} here. To choose, set OMP_NUM_THREADS, or let idle threads "
          "sleep: OMP_WAIT_POLICY=passive, as `lockstep run -n 1 {}` sets it",
          threads, fitting, program_invocation_name));
}

void warn_of_oversubscription(const Membership& member) {
  const std::string machine = member.process(member.rank).machine;
  if (machine.empty()) return;
  std::vector<pid_t> local;
  for (const ProcessIdentity& process : member.processes) {
    if (process.machine == machine) local.push_back(process.pid);
  }
  if (local.front() != ::getpid()) return;
  // Several agents, which do not know of each other, may share the machine.
  if (started_by_lockstep() && std::ssize(local) == member.local_world_size) return;
  // Launchers such as mpirun bind each rank to cores of its own.
  std::set<int> cores;
  for (const pid_t process : local) {
    const std::vector<int> allowed = allowed_cores(process);
    if (allowed.empty()) return;
    cores.insert(allowed.begin(), allowed.end());
  }
  warn_if_oversubscribed("init_process_group", static_cast<int>(local.size()),
                         cut_to_quota(static_cast<int>(cores.size())));
}

void warn_of_oversubscription(int threads) {
  if (!repeats_its_parent())
    warn_if_oversubscribed("make_thread_groups", threads, available_cores());
}

}  // namespace lockstep
