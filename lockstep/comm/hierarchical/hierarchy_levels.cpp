// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/hierarchical/hierarchy_levels.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/local/shm/shm_group.h"
#include "lockstep/comm/remote/remote_group.h"
#include "lockstep/comm/self/self_group.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep {
namespace {

std::shared_ptr<ProcessGroup> join_within_host(const Membership& all, const HostMap& hosts,
                                               int host, const std::string& purpose,
                                               GroupOptions options) {
  const auto& ranks = hosts[static_cast<std::size_t>(host)];
  Membership member = all;
  member.rank = static_cast<int>(std::ranges::find(ranks, all.rank) - ranks.begin());
  member.world_size = static_cast<int>(ranks.size());
  member.job_ranks.clear();
  for (const int of : ranks) member.job_ranks.push_back(all.job_rank(of));
  member.store =
      std::make_shared<PrefixStore>(fmt::format("host/{}/{}/", host, purpose), all.store);
  if (member.world_size == 1) return make_self_group(std::move(member), options);
  const auto of_all = [&](int rank) {
    return rank < 0 ? rank : ranks[static_cast<std::size_t>(rank)];
  };
  const auto text = [&](const Error& error) {
    return fmt::format("{} (ranks of one host: of all they are {})", error.what(),
                       fmt::join(ranks, ", "));
  };
  try {
    return make_shm_group(std::move(member), options);
  } catch (const PeerLost& error) {
    throw PeerLost(of_all(error.rank()), text(error), error.how());
  } catch (const TimeoutError& error) {
    throw TimeoutError(text(error), of_all(error.rank()));
  }
}

}  // namespace

HierarchyLevels join_levels(const Membership& membership, const GroupOptions& options,
                            const std::string& host, std::shared_ptr<ProcessGroup> all) {
  HierarchyLevels levels;
  levels.hosts = map_hosts(membership, host, Deadline::after(options.timeout));
  const auto is_own = [&](const std::vector<int>& ranks) {
    return std::ranges::find(ranks, membership.rank) != ranks.end();
  };
  levels.host = static_cast<int>(std::ranges::find_if(levels.hosts, is_own) - levels.hosts.begin());
  const auto fewest = std::ranges::min_element(
      levels.hosts, {}, [](const std::vector<int>& ranks) { return ranks.size(); });
  levels.slices = static_cast<int>(fewest->size());
  levels.all = std::move(all);
  levels.reducing = join_within_host(membership, levels.hosts, levels.host, "reducing", options);
  levels.sharing = join_within_host(membership, levels.hosts, levels.host, "sharing", options);
  levels.between_hosts = levels.all->split(levels.ranks_between_hosts());
  return levels;
}

std::vector<int> HierarchyLevels::ranks_between_hosts() const {
  std::vector<int> ranks;
  const int slice = reducing->rank();
  if (slice >= slices) return ranks;
  for (const auto& of_host : hosts) ranks.push_back(of_host[static_cast<std::size_t>(slice)]);
  return ranks;
}

void end_groups(HierarchyLevels& levels, const std::string& reason) {
  // Other hosts first: to them the news takes longest.
  if (levels.between_hosts) levels.between_hosts->abort(reason);
  levels.all->abort(reason);
  levels.reducing->abort(reason);
  levels.sharing->abort(reason);
}

// A rank that finds another of its groups ended asks the group of all for the reason.
void end_groups_for_mismatch(HierarchyLevels& levels, const std::string& reason) {
  remote::end_for_mismatch(*levels.all, reason);
  end_groups(levels, reason);
}

}  // namespace lockstep
