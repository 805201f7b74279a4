// SPDX-License-Identifier: BSD-3-Clause
// Which backend auto chooses, for the environment's ranks or for examples.
#include <fmt/format.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/choose_backend.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "tools/doctor/gpus.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

bool gpu_for_each_of(int local_ranks) {
  return find_gpus().usable >= local_ranks && is_usable(backend_row("nccl"));
}

std::string in_words(const Placement& placement) {
  const Choice choice = choose_backend(placement);
  return fmt::format("{} ({})", choice.backend, choice.why);
}

}  // namespace

Finding probe_auto() {
  std::optional<Membership> member;
  try {
    member = membership_in_environment();
  } catch (const UsageError&) {
    return {.state = Finding::State::note,
            .found = "unknown while the environment is broken",
            .advice = "fix the finding about the environment first"};
  }
  if (member) {
    const int local = member->local_world_size;
    return {.found = in_words({.ranks = member->world_size,
                               .hosts = (member->world_size + local - 1) / local,
                               .gpu_for_each_rank = gpu_for_each_of(local),
                               .between_hosts = backend_between_hosts()})};
  }
  constexpr int kRanks = 2;
  const bool gpus = gpu_for_each_of(kRanks);
  const Placement here{.ranks = kRanks, .gpu_for_each_rank = gpus};
  const Placement on_two_hosts{.ranks = 2 * kRanks,
                               .hosts = 2,
                               .gpu_for_each_rank = gpus,
                               .between_hosts = backend_between_hosts()};
  return {.found = fmt::format("{} ranks on this machine: {}; as many on each of two machines: {}",
                               kRanks, in_words(here), in_words(on_two_hosts))};
}

}  // namespace lockstep
