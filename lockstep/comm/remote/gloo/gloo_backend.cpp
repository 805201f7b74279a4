// SPDX-License-Identifier: BSD-3-Clause
// Checks interfaces and descriptors, and joins ranks over Gloo.
#include "lockstep/comm/remote/gloo/gloo_backend.h"

#include "lockstep/comm/remote/gloo/gloo_transport.h"
#include "lockstep/comm/remote/remote_backend.h"
#include "lockstep/core/net/network_interfaces.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// How many descriptors joining takes: for this rank itself, and for each other rank (two
// connections and their stand-ins). Checked first, since Gloo's errors do not say what is lacking.
constexpr int kOwnDescriptors = 12;
constexpr int kDescriptorsToEach = 4;

}  // namespace

std::shared_ptr<Backend> make_gloo_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name) {
  const auto timeout = options.timeout;
  return remote::make_remote_backend(
      name, membership, options,
      {.check =
           [](const Membership& member, const std::string& where) {
             check_interfaces(where, "GLOO_SOCKET_IFNAME", gloo_uses);
             require_descriptors(where,
                                 kOwnDescriptors + kDescriptorsToEach * (member.world_size - 1));
           },
       .join =
           [timeout](const Membership& member, remote::Joining& joining, const Deadline& deadline) {
             return make_gloo_transport(member, joining, timeout, deadline);
           }});
}

}  // namespace lockstep
