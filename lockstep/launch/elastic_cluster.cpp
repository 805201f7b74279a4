// SPDX-License-Identifier: BSD-3-Clause
// Follows the members of all hosts, and packs the records.
#include "lockstep/launch/elastic_cluster.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/packing.h"
#include "lockstep/rendezvous/elastic_board.h"

namespace lockstep {
namespace {

// Begins each record, so that other versions of Lockstep are noticed.
constexpr std::string_view kClusterFormat = "lockstep cluster 1";

void read_format(Unpacking& packed) {
  if (packed.next<std::string_view>() == kClusterFormat) return;
  throw BackendError("it was written by another version of Lockstep");
}

bool is_member(int number) {
  return number >= 0 && number < ElasticBoard::kMostMembers;
}

}  // namespace

std::string encode(const HostRecord& record) {
  return pack(kClusterFormat, record.terms, record.store, record.joined, record.trains);
}

HostRecord decode_host(std::string_view bytes) {
  Unpacking packed(bytes);
  read_format(packed);
  HostRecord record;
  packed.read_all(record.terms, record.store, record.joined, record.trains);
  return record;
}

std::string encode(const ClusterJob& job) {
  const std::vector<std::pair<int, std::string>> hosts(job.hosts.begin(), job.hosts.end());
  return pack(kClusterFormat, job.terms, job.generation.number, job.generation.members,
              job.generation.store, hosts, job.completed, job.finished, job.next_member,
              job.failure);
}

ClusterJob decode_job(std::string_view bytes) {
  Unpacking packed(bytes);
  read_format(packed);
  ClusterJob job;
  std::vector<std::pair<int, std::string>> hosts;
  packed.read_all(job.terms, job.generation.number, job.generation.members, job.generation.store,
                  hosts, job.completed, job.finished, job.next_member, job.failure);
  job.hosts = {hosts.begin(), hosts.end()};
  if (!std::ranges::all_of(job.generation.members, is_member) ||
      !std::ranges::all_of(std::views::keys(job.hosts), is_member)) {
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
  if (generation.number < 0 || !failure.empty()) return;
  const auto all = hosts;
  for (const auto& [member, host] : all) {
    if (!live.contains(host)) end(member, false, fmt::format("its host {} was lost", host));
  }
  if (!failure.empty()) return;
  const auto is_lost = [&](int member) { return !hosts.contains(member); };
  if (std::erase_if(generation.members, is_lost) > 0) {
    const auto train = static_cast<int>(generation.members.size());
    if (train == 0 || train + finished < least) {
      failure =
          fmt::format("{} of its ranks are left, and --elastic wants at least {}", train, least);
      return;
    }
    return open(live);
  }
  const auto trains = [&](int member) {
    return live.at(hosts.at(member)).trains >= generation.number;
  };
  if (finished > 0 || !std::ranges::all_of(generation.members, trains)) return;
  std::vector<int> joined;
  for (const auto& [name, host] : live) {
    for (const int member : host.joined) {
      const auto runs = hosts.find(member);
      if (runs == hosts.end() || runs->second != name || generation.rank_of(member)) continue;
      joined.push_back(member);
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
  generation.store = live.at(hosts.at(generation.members.front())).store;
}

std::vector<int> ClusterJob::members_on(const std::string& host) const {
  std::vector<int> members;
  for (const auto& [member, on] : hosts) {
    if (on == host) members.push_back(member);
  }
  return members;
}

}  // namespace lockstep
