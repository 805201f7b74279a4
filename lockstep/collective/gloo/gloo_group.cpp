// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/gloo/gloo_group.h"

#include <fmt/format.h>

#include "lockstep/collective/gloo/gloo_carrier.h"
#include "lockstep/collective/network/network_group.h"
#include "lockstep/core/network_interfaces.h"

namespace lockstep {

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
        check_interfaces(
            fmt::format("[{}] joining, rank {} of {}: ", name, member.rank, member.world_size),
            "GLOO_SOCKET_IFNAME", gloo_uses);
        return make_gloo_carrier(member, own_host, timeout, deadline);
      });
}

}  // namespace lockstep
