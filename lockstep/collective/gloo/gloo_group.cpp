// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/gloo/gloo_group.h"

#include <fmt/format.h>

#include "lockstep/collective/gloo/gloo_carrier.h"
#include "lockstep/collective/network/network_group.h"
#include "lockstep/core/network_interfaces.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// What Gloo opens, which does not say what it lacks: for itself, and to each other rank.
constexpr int kOwnDescriptors = 6;
constexpr int kDescriptorsToEach = 2;

}  // namespace

bool gloo_built_in() {
  return true;
}

std::shared_ptr<ProcessGroup> make_gloo_group(Membership membership, GroupOptions options,
                                              const std::string& name) {
  const auto timeout = options.timeout;
  return network::make_network_group(
      name, std::move(membership), options,
      [timeout, name](const Membership& member, const std::string& own_host,
                      const Deadline& deadline) {
        const std::string where =
            fmt::format("[{}] joining, rank {} of {}: ", name, member.rank, member.world_size);
        check_interfaces(where, "GLOO_SOCKET_IFNAME", gloo_uses);
        require_descriptors(where, kOwnDescriptors + kDescriptorsToEach * (member.world_size - 1));
        return make_gloo_carrier(member, own_host, timeout, deadline);
      });
}

}  // namespace lockstep
