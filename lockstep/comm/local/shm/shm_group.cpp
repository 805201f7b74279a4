// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/local/shm/shm_group.h"

#include "lockstep/comm/local/local_group.h"
#include "lockstep/comm/local/shm/shm_peers.h"
#include "lockstep/comm/self/self_group.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep {
namespace {

// Its ranks meet where the group's did, under a name of their own.
std::shared_ptr<ProcessGroup> make_subgroup(const std::string& name, Membership membership,
                                            GroupOptions options) {
  if (membership.world_size == 1) return make_self_group(std::move(membership), options);
  membership.store = std::make_shared<PrefixStore>(name + "/", std::move(membership.store));
  return make_shm_group(std::move(membership), options);
}

}  // namespace

std::shared_ptr<ProcessGroup> make_shm_group(Membership membership, GroupOptions options) {
  auto peers = shm::make_shm_peers(membership, Deadline::after(options.timeout));
  return local::make_local_group(std::move(peers), std::move(membership), options, make_subgroup);
}

}  // namespace lockstep
