// SPDX-License-Identifier: BSD-3-Clause
// Looks at the terminal, the launchers' variables, and the ranks' affinity masks.
#include "lockstep/comm/group_warnings.h"

#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/comm/core/device_count.h"
#include "lockstep/core/cpu.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

// One call site, so that it warns once whatever the kind of ranks.
void warn_if_crowded(int ranks, int cores) {
  const std::string warning = oversubscription(ranks, cores);
  if (warning.empty()) return;
  TORCH_WARN_ONCE(warning);
}

}  // namespace

void warn_of_group_of_one(at::Device device) {
  const bool watched = ::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1;
  // A rank that runs main again comes by calls that its parent has made.
  if (!watched || is_rank()) return;
  if (membership_in_environment() || !foreign_launchers().empty()) return;
  const int units = device.is_cuda() ? device_count(at::kCUDA) : available_cores();
  if (units < 2) return;
  TORCH_WARN_ONCE(fmt::format(
      "this process is a group of one, and could use {0} {1}: `lockstep run -n {0} {2}` starts {0} "
      "ranks. If one rank is intended, say so: init_process_group({{.world_size = 1}})",
      units, device.is_cuda() ? "GPUs" : "cores", program_invocation_name));
}

void warn_of_oversubscription(const Membership& member) {
  // Ranks of `lockstep run` on several machines have this variable, too, but empty.
  if (started_by_lockstep()) return;
  const std::string machine = member.process(member.rank).machine;
  if (machine.empty()) return;
  std::vector<pid_t> local;
  for (const ProcessIdentity& process : member.processes) {
    if (process.machine == machine) local.push_back(process.pid);
  }
  if (local.front() != ::getpid()) return;
  // Launchers such as mpirun bind each rank to cores of its own.
  std::set<int> cores;
  for (const pid_t process : local) {
    const std::vector<int> allowed = allowed_cores(process);
    cores.insert(allowed.begin(), allowed.end());
  }
  warn_if_crowded(static_cast<int>(local.size()), cut_to_quota(static_cast<int>(cores.size())));
}

void warn_of_oversubscription(int threads) {
  warn_if_crowded(threads, available_cores());
}

}  // namespace lockstep
