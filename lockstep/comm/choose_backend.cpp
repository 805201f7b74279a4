// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/choose_backend.h"

#include <algorithm>
#include <sstream>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include "lockstep/comm/hierarchical/hierarchical_group.h"
#include "lockstep/comm/hierarchical/host_map.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/local/shm/shm_group.h"
#include "lockstep/comm/nccl/nccl_group.h"
#include "lockstep/comm/remote/gloo/gloo_group.h"
#include "lockstep/comm/remote/mpi/mpi_group.h"
#include "lockstep/comm/self/self_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/rendezvous/exchange.h"
#include "lockstep/rendezvous/mpi_library.h"
#include "lockstep/rendezvous/roll_call.h"

namespace lockstep {
namespace {

// The GPU as all processes of this machine know it: CUDA_VISIBLE_DEVICES renumbers them.
std::string gpu_name(at::Device device) {
  std::istringstream visible(environment("CUDA_VISIBLE_DEVICES").value_or(""));
  std::string name = std::to_string(device.index());
  std::string entry;
  for (int index = 0; std::getline(visible, entry, ','); ++index) {
    if (index == device.index()) name = entry;
  }
  return name;
}

// Whether NCCL can join the ranks, which wants a GPU for each. All ranks get the same answer, also
// if they were given different devices.
bool has_gpu_for_each_rank(const Membership& member, const GroupOptions& options) {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return false;
  const bool can = options.device.is_cuda() && why_not_nccl().empty();
  auto gpus = exchange(member, "gpus", can ? this_host() + " " + gpu_name(options.device) : "",
                       Deadline::after(options.timeout));
  std::ranges::sort(gpus);
  return !gpus.front().empty() && std::ranges::adjacent_find(gpus) == gpus.end();
}

constexpr std::string_view kHierarchical = "hierarchical";

// What moves bytes between machines: "hierarchical:mpi" is by mpi.
MakeGroupBetweenHosts engine_of(const std::string& backend) {
  if (backend.ends_with("mpi")) return make_mpi_group;
  if (backend.ends_with("nccl")) return make_nccl_group;
  return make_gloo_group;
}

Placement find_placement(const Membership& member, const GroupOptions& options) {
  if (member.world_size == 1) return {};
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
  if (placement.between_hosts == "gloo") return {std::string(kHierarchical), why};
  return {fmt::format("{}:{}", kHierarchical, placement.between_hosts), why};
}

std::string backend_between_hosts() {
  return !gloo_built_in() && MpiLibrary::built_in() ? "mpi" : "gloo";
}

std::shared_ptr<ProcessGroup> make_group(std::string backend, Membership member,
                                         GroupOptions options) {
  if (member.store) {
    member.processes = call_roll(member, backend, Deadline::after(options.timeout));
  }
  if (backend == "auto" || member.world_size == 1) {
    const Choice choice = choose_backend(find_placement(member, options));
    backend = choice.backend;
    options.why = choice.why;
  }
  if (backend == "self") return make_self_group(std::move(member), options);
  if (backend == "shm") return make_shm_group(std::move(member), options);
  const MakeGroupBetweenHosts make = engine_of(backend);
  if (backend.starts_with(kHierarchical)) {
    return make_hierarchical_group(std::move(member), options, this_host(), make);
  }
  return make(std::move(member), options, backend);
}

const std::vector<std::string>& backends() {
  static const std::vector<std::string> names = {"auto",
                                                 "shm",
                                                 "gloo",
                                                 "mpi",
                                                 "nccl",
                                                 "hierarchical",
                                                 "hierarchical:mpi",
                                                 "hierarchical:nccl"};
  return names;
}

}  // namespace lockstep
