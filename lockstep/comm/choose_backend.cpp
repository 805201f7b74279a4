// SPDX-License-Identifier: BSD-3-Clause
// Finds out where the ranks are, and makes a group with the backend that suits them.
#include "lockstep/comm/choose_backend.h"

#include <algorithm>
#include <sstream>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/core/host_map.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/group_warnings.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/exchange.h"
#include "lockstep/rendezvous/roll_call.h"

namespace lockstep {
namespace {

// The GPU's name, the same in all processes of this machine: CUDA_VISIBLE_DEVICES renumbers GPUs.
std::string gpu_name(at::Device device) {
  std::istringstream visible(environment("CUDA_VISIBLE_DEVICES").value_or(""));
  std::string name = std::to_string(device.index());
  std::string entry;
  for (int index = 0; std::getline(visible, entry, ','); ++index) {
    if (index == device.index()) name = entry;
  }
  return name;
}

// Whether NCCL can join the ranks, which needs a GPU for each. All ranks get the same answer, even
// if they were given different devices.
bool has_gpu_for_each_rank(const Membership& member, const GroupOptions& options) {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return false;
  const bool can = options.device.is_cuda() && is_usable(backend_row("nccl"));
  auto gpus = exchange(member, "gpus", can ? this_host() + " " + gpu_name(options.device) : "",
                       Deadline::after(options.timeout));
  std::ranges::sort(gpus);
  return !gpus.front().empty() && std::ranges::adjacent_find(gpus) == gpus.end();
}

Placement find_placement(const Membership& member, const GroupOptions& options) {
  Placement placement{.ranks = member.world_size,
                      .gpu_for_each_rank = has_gpu_for_each_rank(member, options),
                      .between_hosts = backend_between_hosts()};
  if (!member.address.empty()) {
    placement.hosts =
        static_cast<int>(map_hosts(member, this_host(), Deadline::after(options.timeout)).size());
  }
  return placement;
}

}  // namespace

Choice choose_backend(const Placement& placement) {
  if (placement.ranks == 1) return {"self", "there is one rank"};
  if (placement.gpu_for_each_rank) return {"nccl", "each rank has a GPU of its own"};
  if (placement.hosts == 1) return {"shm", "all ranks share this machine"};
  const std::string why = fmt::format("the ranks are on {} hosts", placement.hosts);
  if (placement.hosts == placement.ranks) return {placement.between_hosts, why};
  if (placement.between_hosts == "gloo") return {std::string("hierarchical"), why};
  return {"hierarchical:" + placement.between_hosts, why};
}

std::string backend_between_hosts() {
  return !backend_row("gloo").built_in() && backend_row("mpi").built_in() ? "mpi" : "gloo";
}

std::shared_ptr<ProcessGroup> make_group(std::string backend, Membership member,
                                         GroupOptions options) {
  if (member.store) {
    member.processes = call_roll(member, backend, Deadline::after(options.timeout));
    warn_of_oversubscription(member);
  }
  if (member.world_size == 1) {
    options.why = choose_backend({}).why;
    auto alone = make_self_backend(member, options);
    return std::make_shared<ProcessGroup>(std::move(member), std::move(options), std::move(alone));
  }
  if (backend == "auto") {
    const Choice choice = choose_backend(find_placement(member, options));
    backend = choice.backend;
    options.why = choice.why;
  }
  const BackendRow& row = backend_row(backend);
  if (!row.built_in()) {
    throw BackendError(
        fmt::format("backend \"{}\" is not built into this Lockstep: {}", backend, row.how_to_get));
  }
  auto joined = row.join(member, options, backend);
  return std::make_shared<ProcessGroup>(std::move(member), std::move(options), std::move(joined));
}

}  // namespace lockstep
