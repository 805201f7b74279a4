// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/gloo/gloo_group.h"

#include "lockstep/collective/gloo/gloo_carrier.h"
#include "lockstep/collective/network/network_group.h"
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
  return network::make_network_group(
      name, std::move(membership), options,
      [timeout](const Membership& member, network::Joining& joining, const Deadline& deadline) {
        check_interfaces(joining.where(), "GLOO_SOCKET_IFNAME", gloo_uses);
        require_descriptors(joining.where(),
                            kOwnDescriptors + kDescriptorsToEach * (member.world_size - 1));
        return make_gloo_carrier(member, joining, timeout, deadline);
      });
}

}  // namespace lockstep
