// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/local/thread/thread_group.h"

#include <fmt/format.h>

#include "lockstep/comm/local/local_group.h"
#include "lockstep/comm/local/thread/thread_peers.h"
#include "lockstep/comm/self/self_group.h"
#include "lockstep/core/cpu.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using thread::World;

std::shared_ptr<ProcessGroup> join(const std::shared_ptr<World>& world, Membership membership,
                                   GroupOptions options) {
  if (membership.world_size == 1) return make_self_group(std::move(membership), options);
  auto peers = thread::make_thread_peers(world, membership.rank);
  const auto subgroup = [world](const std::string& name, Membership member, GroupOptions settings) {
    const int size = member.world_size;
    return join(world->part(name, size), std::move(member), settings);
  };
  return local::make_local_group(std::move(peers), std::move(membership), options, subgroup);
}

}  // namespace

std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, GroupOptions options) {
  if (size < 1)
    throw UsageError(fmt::format("make_thread_groups: {} ranks; give at least 1", size));
  warn_of_oversubscription(size);
  const auto world = std::make_shared<World>(size);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(join(world,
                          {.rank = rank,
                           .world_size = size,
                           .local_rank = rank,
                           .local_world_size = size,
                           .generation = 0,
                           .store = nullptr},
                          options));
  }
  return groups;
}

}  // namespace lockstep
