// SPDX-License-Identifier: BSD-3-Clause
// Checks that NCCL can be used, and joins ranks over it.
#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/nccl/nccl_library.h"
#include "lockstep/comm/nccl/nccl_schedules.h"
#include "lockstep/comm/nccl/nccl_transport.h"
#include "lockstep/comm/remote/remote_backend.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/network_interfaces.h"

namespace lockstep {

std::string nccl_version() {
  return nccl::NcclLibrary::get().version();
}

std::shared_ptr<Backend> make_nccl_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name) {
  const at::Device device = options.device;
  if (!device.is_cuda()) {
    throw UsageError(fmt::format(
        "[{}] joining, rank {} of {}: NCCL joins GPUs, and this rank's device is {}; use "
        "shm or gloo for CPUs",
        name, membership.rank, membership.world_size, device.str()));
  }
  // Adds the device to errors of NCCL.
  const auto on_device = [device, name](const Membership& member, const auto& function) {
    try {
      return function();
    } catch (const TimeoutError&) {
      throw;
    } catch (const BackendError& error) {
      throw BackendError(fmt::format("[{}] joining, rank {} of {}, {}: {}", name, member.rank,
                                     member.world_size, device.str(), error.what()));
    }
  };
  return remote::make_remote_backend(
      name, membership, options,
      {.check =
           [on_device](const Membership& member, const std::string& where) {
             check_interfaces(where, "NCCL_SOCKET_IFNAME", nccl_uses);
             on_device(member, [] { nccl::NcclLibrary::get(); });
           },
       .join = [on_device, device](const Membership& member, remote::Joining& joining,
                                   const Deadline& deadline) -> std::unique_ptr<remote::Transport> {
         return on_device(
             member, [&] { return nccl::make_nccl_transport(member, device, joining, deadline); });
       },
       .schedule = nccl::schedule_nccl,
       .device = device});
}

}  // namespace lockstep
