// SPDX-License-Identifier: BSD-3-Clause
// Joins the groups within and between hosts, and ends them together.
#include "lockstep/comm/hierarchical/hierarchy_levels.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/local/shm/shm_backend.h"
#include "lockstep/comm/self/self_backend.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep {
namespace {

std::shared_ptr<Backend> join_within_host(const Membership& all, const std::vector<int>& ranks,
                                          int host, const std::string& purpose,
                                          const GroupOptions& options) {
  Membership member = all.part(ranks);
  member.store =
      std::make_shared<PrefixStore>(fmt::format("host/{}/{}/", host, purpose), all.store);
  if (member.world_size == 1) return make_self_backend(member, options);
  const auto of_all = [&](int rank) {
    return rank < 0 ? rank : ranks[static_cast<std::size_t>(rank)];
  };
  const auto text = [&](const Error& error) {
    return fmt::format("{} (ranks of one host: of all they are {})", error.what(),
                       fmt::join(ranks, ", "));
  };
  try {
    return make_shm_backend(member, options);
  } catch (const PeerLost& error) {
    throw PeerLost(of_all(error.rank()), text(error), error.how());
  } catch (const TimeoutError& error) {
    throw TimeoutError(text(error), of_all(error.rank()));
  }
}

}  // namespace

HierarchyLevels join_levels(const Membership& membership, const GroupOptions& options,
                            const std::string& host, std::shared_ptr<Backend> all) {
  HierarchyLevels levels;
  levels.hosts = map_hosts(membership, host, Deadline::after(options.timeout));
  const auto is_own = [&](const std::vector<int>& ranks) {
    return std::ranges::find(ranks, membership.rank) != ranks.end();
  };
  levels.host = static_cast<int>(std::ranges::find_if(levels.hosts, is_own) - levels.hosts.begin());
  const auto fewest = std::ranges::min_element(
      levels.hosts, {}, [](const std::vector<int>& ranks) { return ranks.size(); });
  levels.slices = static_cast<int>(fewest->size());
  const auto& own = levels.ranks_of_host();
  levels.index = static_cast<int>(std::ranges::find(own, membership.rank) - own.begin());
  levels.timeout = options.timeout;
  levels.all = std::move(all);
  levels.reducing = join_within_host(membership, own, levels.host, "reducing", options);
  levels.sharing = join_within_host(membership, own, levels.host, "sharing", options);
  if (const std::vector<int> ranks = levels.ranks_between_hosts(); !ranks.empty()) {
    levels.between_hosts = levels.all->split(fmt::format("between_hosts/{}", fmt::join(ranks, "-")),
                                             membership.part(ranks));
  }
  return levels;
}

std::vector<int> HierarchyLevels::ranks_between_hosts() const {
  std::vector<int> ranks;
  if (index >= slices) return ranks;
  for (const auto& of_host : hosts) ranks.push_back(of_host[static_cast<std::size_t>(index)]);
  return ranks;
}

void end_groups(HierarchyLevels& levels, const std::string& reason) {
  // Groups with other hosts first: the news takes longest to reach them.
  if (levels.between_hosts) levels.between_hosts->abort(reason);
  levels.all->abort(reason);
  levels.reducing->abort(reason);
  levels.sharing->abort(reason);
}

// A rank that finds another of its groups ended asks the group of all for the reason.
void end_groups_for_mismatch(HierarchyLevels& levels, const std::string& reason) {
  levels.all->abort_for_mismatch(reason);
  end_groups(levels, reason);
}

}  // namespace lockstep
