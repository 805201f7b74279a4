// SPDX-License-Identifier: BSD-3-Clause
// Joins processes of one machine into a group, and its subgroups.
#include "lockstep/comm/local/shm/shm_backend.h"

#include "lockstep/comm/local/local_backend.h"
#include "lockstep/comm/local/shm/shm_peers.h"
#include "lockstep/comm/self/self_backend.h"

namespace lockstep {
namespace {

std::shared_ptr<Backend> make_subgroup(const std::string& /*name*/, const Membership& membership,
                                       const GroupOptions& options) {
  if (membership.world_size == 1) return make_self_backend(membership, options);
  return make_shm_backend(membership, options);
}

}  // namespace

std::shared_ptr<Backend> make_shm_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& /*name*/) {
  auto peers = shm::make_shm_peers(membership, Deadline::after(options.timeout));
  return local::make_local_backend(std::move(peers), membership, options, make_subgroup);
}

}  // namespace lockstep
