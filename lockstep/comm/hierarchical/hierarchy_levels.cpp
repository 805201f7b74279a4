// SPDX-License-Identifier: BSD-3-Clause
// Joins the groups within and between hosts, and ends them together.
#include "lockstep/comm/hierarchical/hierarchy_levels.h"

#include <algorithm>
#include <exception>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep::hierarchical {
namespace {

// Joins these ranks of a group with the function. Errors name a rank by its number in the group,
// and say which ranks these are: "ranks of one host".
template <class Join>
std::shared_ptr<Backend> join_part(const std::vector<int>& ranks, std::string_view which,
                                   const Join& join) {
  const auto of_all = [&](int rank) {
    return rank < 0 ? rank : ranks[static_cast<std::size_t>(rank)];
  };
  const auto translated = [&](const Error& error) {
    ErrorDetails details = error.details();
    details.peer = of_all(details.peer);
    std::string& end = details.remedy.empty() ? details.cause : details.remedy;
    end += fmt::format(" ({}: of all they are {})", which, fmt::join(ranks, ", "));
    return details;
  };
  try {
    return join();
  } catch (const StoreSilent&) {
    throw;
  } catch (const PeerLost& error) {
    throw PeerLost(translated(error), error.how());
  } catch (const TimeoutError& error) {
    throw TimeoutError(translated(error));
  }
}

Membership part_at(const Membership& all, const std::vector<int>& ranks,
                   const std::string& prefix) {
  Membership member = all.part(ranks);
  member.store = std::make_shared<PrefixStore>(prefix + "/", all.store);
  return member;
}

std::shared_ptr<Backend> join_within_host(const Membership& all, const HierarchyLevels& levels,
                                          const std::string& purpose, const GroupOptions& options) {
  const auto& ranks = levels.ranks_of_host();
  const Membership member = part_at(all, ranks, fmt::format("host/{}/{}", levels.host, purpose));
  if (member.world_size == 1) return make_self_backend(member, options);
  return join_part(ranks, "ranks of one host", [&] { return make_shm_backend(member, options); });
}

// Null on a rank that has no slice.
std::shared_ptr<Backend> join_between_hosts(const Membership& all, const HierarchyLevels& levels) {
  // The group of all ranks, which watches the other hosts, notices a rank that fails or dies before
  // this point.
  levels.all->start({.call = {.collective = Collective::split}}).wait();
  const std::vector<int> ranks = levels.ranks_between_hosts();
  if (ranks.empty()) return nullptr;
  const std::string name = fmt::format("between_hosts/{}", fmt::join(ranks, "-"));
  const Membership member = part_at(all, ranks, name);
  return join_part(ranks, "ranks of different hosts",
                   [&] { return levels.all->split(name, member); });
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
  try {
    levels.reducing = join_within_host(membership, levels, "reducing", options);
    levels.sharing = join_within_host(membership, levels, "sharing", options);
    levels.between_hosts = join_between_hosts(membership, levels);
  } catch (const std::exception& error) {
    // The peers must learn which rank this one lost, if any, and not blame this one.
    const GroupLosses losses(membership);
    if (const auto* const lost = dynamic_cast<const StoreLost*>(&error)) {
      losses.note(*lost);
    } else {
      losses.note(std::current_exception());
    }
    leave_groups_failing(levels, "an exception ended it: " + first_line(error));
    throw;
  }
  return levels;
}

std::vector<int> HierarchyLevels::ranks_between_hosts() const {
  std::vector<int> ranks;
  if (index >= slices) return ranks;
  for (const auto& of_host : hosts) ranks.push_back(of_host[static_cast<std::size_t>(index)]);
  return ranks;
}

bool HierarchyLevels::hosts_are_alike() const {
  return std::ranges::all_of(hosts, [this](const std::vector<int>& ranks) {
    return static_cast<int>(ranks.size()) == slices;
  });
}

// The group of all ranks first, since the others look there for the cause.
void leave_groups_failing(const HierarchyLevels& levels, const std::string& reason) {
  for (const auto& group : {levels.all, levels.between_hosts, levels.reducing, levels.sharing}) {
    if (group) group->leave_failing(reason);
  }
}

void end_groups(HierarchyLevels& levels, const std::string& reason) {
  // Groups with other hosts first: the news takes longest to reach them.
  if (levels.between_hosts) levels.between_hosts->abort(reason);
  levels.all->abort(reason);
  levels.reducing->abort(reason);
  levels.sharing->abort(reason);
}

}  // namespace lockstep::hierarchical
