// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/remote/gloo/gloo_group.h"

#include "lockstep/comm/remote/gloo/gloo_transport.h"
#include "lockstep/comm/remote/remote_group.h"
#include "lockstep/core/network_interfaces.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// How many descriptors joining takes, for itself and for each other rank (two connections and their
// stand-ins), since Gloo does not say what it lacks.
constexpr int kOwnDescriptors = 12;
constexpr int kDescriptorsToEach = 4;

}  // namespace

bool gloo_built_in() {
  return true;
}

std::shared_ptr<ProcessGroup> make_gloo_group(Membership membership, GroupOptions options,
                                              const std::string& name) {
  const auto timeout = options.timeout;
  return remote::make_remote_group(
      name, std::move(membership), options,
      [timeout](const Membership& member, remote::Joining& joining, const Deadline& deadline) {
        check_interfaces(joining.where(), "GLOO_SOCKET_IFNAME", gloo_uses);
        require_descriptors(joining.where(),
                            kOwnDescriptors + kDescriptorsToEach * (member.world_size - 1));
        return make_gloo_transport(member, joining, timeout, deadline);
      });
}

}  // namespace lockstep
