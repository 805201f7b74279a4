// SPDX-License-Identifier: BSD-3-Clause
// Joins threads of one process into a group, and its subgroups.
#include "lockstep/comm/local/thread/thread_backend.h"

#include "lockstep/comm/local/local_backend.h"
#include "lockstep/comm/local/thread/thread_peers.h"
#include "lockstep/comm/self/self_backend.h"

namespace lockstep {
namespace {

using thread::World;

std::shared_ptr<Backend> join(const std::shared_ptr<World>& world, const Membership& membership,
                              const GroupOptions& options) {
  if (membership.world_size == 1) return make_self_backend(membership, options);
  auto peers = thread::make_thread_peers(world, membership.rank);
  const auto subgroup = [world](const std::string& name, const Membership& member,
                                const GroupOptions& settings) {
    return join(world->part(name, member.world_size), member, settings);
  };
  return local::make_local_backend(std::move(peers), membership, options, subgroup);
}

}  // namespace

std::function<std::shared_ptr<Backend>(const Membership& membership, const GroupOptions& options)>
join_threads(int size) {
  return [world = std::make_shared<World>(size)](const Membership& membership,
                                                 const GroupOptions& options) {
    return join(world, membership, options);
  };
}

}  // namespace lockstep
