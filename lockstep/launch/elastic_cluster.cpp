// SPDX-License-Identifier: BSD-3-Clause
// Follows the members of all hosts, and packs the records.
#include "lockstep/launch/elastic_cluster.h"

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/packing.h"
#include "lockstep/rendezvous/elastic_board.h"

namespace lockstep {
namespace {

// Begins each record, so that other versions of Lockstep are noticed.
constexpr std::string_view kClusterFormat = "lockstep cluster 2";

void read_format(Unpacking& packed) {
  if (packed.next<std::string_view>() == kClusterFormat) return;
  throw BackendError("it was written by another version of Lockstep");
}

void require_end(const Unpacking& packed) {
  if (!packed.done()) throw BackendError("it is followed by other bytes");
}

using PackedProgress = std::pair<std::pair<int, std::int64_t>, bool>;

bool contains(const std::vector<int>& members, int member) {
  return std::ranges::find(members, member) != members.end();
}

bool is_member(int number) {
  return number >= 0 && number < ElasticBoard::kMostMembers;
}

}  // namespace

std::string encode(const HostRecord& record) {
  std::vector<PackedProgress> progress;
  for (const auto& [member, of_member, stopped] : record.progress) {
    progress.push_back({{member, of_member}, stopped});
  }
  return pack(kClusterFormat, record.terms, record.store, record.joined, record.trains,
              record.stands_still, progress, record.waits);
}

HostRecord decode_host(std::string_view bytes) {
  Unpacking packed(bytes);
  read_format(packed);
  HostRecord record;
  std::vector<PackedProgress> progress;
  packed.read_all(record.terms, record.store, record.joined, record.trains, record.stands_still,
                  progress, record.waits);
  require_end(packed);
  for (const auto& [of_member, stopped] : progress) {
    record.progress.push_back({of_member.first, of_member.second, stopped});
  }
  return record;
}

std::string encode(const ClusterJob& job) {
  const std::vector<std::pair<int, std::string>> hosts(job.hosts.begin(), job.hosts.end());
  return pack(kClusterFormat, job.terms, job.generation.number, job.generation.members,
              job.generation.store, hosts, job.trains, job.completed, job.finished, job.next_member,
              job.limit, job.wish, job.leaving, job.hanging, job.failure);
}

ClusterJob decode_job(std::string_view bytes) {
  Unpacking packed(bytes);
  read_format(packed);
  ClusterJob job;
  std::vector<std::pair<int, std::string>> hosts;
  packed.read_all(job.terms, job.generation.number, job.generation.members, job.generation.store,
                  hosts, job.trains, job.completed, job.finished, job.next_member, job.limit,
                  job.wish, job.leaving, job.hanging, job.failure);
  require_end(packed);
  job.hosts = {hosts.begin(), hosts.end()};
  const auto are_members = [](const auto& members) {
    return std::ranges::all_of(members, is_member);
  };
  const auto are_counts = [](auto... numbers) {
    return ((numbers >= 0 && numbers <= ElasticBoard::kMostMembers) && ...);
  };
  if (!are_members(job.generation.members) || !are_members(std::views::keys(job.hosts)) ||
      !are_counts(job.finished, job.next_member, job.limit, job.wish)) {
    throw BackendError("it has members that cannot be");
  }
  return job;
}

void ClusterJob::found(const std::vector<std::string>& names, int ranks, const LiveHosts& live) {
  for (const std::string& name : names) {
    add_newcomers(name, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      generation.members.push_back(next_member - ranks + rank);
    }
  }
  open(live);
}

void ClusterJob::add_newcomers(const std::string& host, int count) {
  for (; count > 0 && is_member(next_member); --count) hosts[next_member++] = host;
}

void ClusterJob::resize(int ranks) {
  if (finished == 0) limit = wish = ranks;
}

void ClusterJob::complete(int member) {
  if (std::erase(generation.members, member) == 0) return;
  completed.push_back(member);
  ++finished;
}

void ClusterJob::end(int member, bool success, const std::string& what) {
  if (hosts.erase(member) == 0) return;
  const bool was_complete = std::erase(completed, member) > 0;
  if (success) {
    if (std::erase(generation.members, member) > 0) ++finished;
  } else if (was_complete && failure.empty()) {
    failure =
        fmt::format("member {}, which had completed the training, was lost: {}", member, what);
  }
}

void ClusterJob::dismiss(int member) {
  hosts.erase(member);
  std::erase(generation.members, member);
}

void ClusterJob::settle(const LiveHosts& live, int least) {
  if (generation.number < 0 || !failure.empty() || !remove_lost(live, least)) return;
  const auto train = [&](int member) {
    return live.at(hosts.at(member)).trains >= generation.number;
  };
  trains = trains || std::ranges::all_of(generation.members, train);
  find_hanging(live);
  if (finished > 0) {
    wish = 0;
    return;
  }
  start_wanted(live);
  if (!trains) return;
  let_leave(live);
  if (trains) admit_newcomers(live);
}

bool ClusterJob::remove_lost(const LiveHosts& live, int least) {
  const auto all = hosts;
  for (const auto& [member, host] : all) {
    if (!live.contains(host)) end(member, false, fmt::format("its host {} was lost", host));
  }
  if (!failure.empty()) return false;
  const auto is_lost = [&](int member) { return !hosts.contains(member); };
  if (std::erase_if(generation.members, is_lost) == 0) return true;
  const auto left = static_cast<int>(generation.members.size());
  if (left == 0 || left + finished < least) {
    failure = fmt::format("{} {} left to train{}, and --elastic wants at least {}",
                          ranks_in_words(left), left == 1 ? "is" : "are",
                          finished > 0 ? fmt::format(", {} finished", finished) : "", least);
    return false;
  }
  open(live);
  return true;
}

// Members that leave may keep the others waiting in their last step.
void ClusterJob::find_hanging(const LiveHosts& live) {
  hanging.clear();
  std::vector<MemberProgress> all;
  for (const auto& [name, host] : live) {
    const auto is_waited_for = [&](int member) {
      return generation.rank_of(member) || contains(leaving, member);
    };
    if (std::ranges::none_of(members_on(name), is_waited_for)) continue;
    if (host.stands_still != generation.number) return;
    for (const MemberProgress& one : host.progress) {
      const auto on = hosts.find(one.member);
      if (on != hosts.end() && on->second == name) all.push_back(one);
    }
  }
  std::ranges::sort(all, {}, &MemberProgress::member);
  hanging = hanging_members(all);
}

// Newcomers come, or go, at once. A host whose ranks all leave is about to end.
void ClusterJob::start_wanted(const LiveHosts& live) {
  if (wish == 0) return;
  for (int missing = wish - ranks(); missing > 0; --missing) {
    std::map<std::string, int> load;
    for (const auto& [name, host] : live) {
      if (host.terms == terms && host.waits) load[name] = 0;
    }
    for (const auto& [member, host] : hosts) {
      if (counts(member)) ++load[host];
    }
    if (load.empty()) return;
    const auto ranks_on = [](const auto& host) { return host.second; };
    add_newcomers(std::ranges::min_element(load, {}, ranks_on)->first, 1);
  }
  const auto all = hosts;
  for (const auto& [member, host] : std::views::reverse(all)) {
    if (ranks() > wish && is_newcomer(member)) dismiss(member);
  }
  if (ranks() <= wish) wish = 0;
}

// The highest ranks of a generation in which all train: one that has not met it would skip it.
void ClusterJob::let_leave(const LiveHosts& live) {
  if (wish == 0) return;
  const auto first = generation.members.end() - (ranks() - wish);
  leaving.insert(leaving.end(), first, generation.members.end());
  generation.members.erase(first, generation.members.end());
  wish = 0;
  open(live);
}

void ClusterJob::admit_newcomers(const LiveHosts& live) {
  std::vector<int> joined;
  for (const auto& [name, host] : live) {
    for (const int member : host.joined) {
      const auto runs = hosts.find(member);
      if (runs != hosts.end() && runs->second == name && is_newcomer(member)) {
        joined.push_back(member);
      }
    }
  }
  if (joined.empty()) return;
  std::ranges::sort(joined);
  generation.members.insert(generation.members.end(), joined.begin(), joined.end());
  open(live);
}

// On the host of rank 0, since that is no further from the others than any, and dies with a member
// that they miss anyway.
void ClusterJob::open(const LiveHosts& live) {
  ++generation.number;
  trains = false;
  hanging.clear();
  generation.store = live.at(hosts.at(generation.members.front())).store;
}

std::vector<int> ClusterJob::members_on(const std::string& host) const {
  std::vector<int> members;
  for (const auto& [member, on] : hosts) {
    if (on == host) members.push_back(member);
  }
  return members;
}

bool ClusterJob::counts(int member) const {
  return hosts.contains(member) && !contains(completed, member) && !contains(leaving, member);
}

int ClusterJob::ranks() const {
  return static_cast<int>(std::ranges::count_if(std::views::keys(hosts),
                                                [this](int member) { return counts(member); }));
}

bool ClusterJob::is_newcomer(int member) const {
  return counts(member) && !generation.rank_of(member);
}

}  // namespace lockstep
