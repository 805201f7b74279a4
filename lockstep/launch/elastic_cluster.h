// SPDX-License-Identifier: BSD-3-Clause
// Who belongs to an elastic job of several hosts, as their agents write it into etcd, and which
// generation follows. Without processes, clocks and etcd.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/elastic_members.h"
#include "lockstep/rendezvous/elastic_job.h"

namespace lockstep {

// What an agent says of its host. It is there as long as the agent's lease lives.
struct HostRecord {
  // As ClusterJob::terms: what it was told.
  std::string terms{};
  // Where the agent serves the store of the generations whose rank 0 is on this host: "host:port".
  std::string store{};
  // Newcomers on this host that can train.
  std::vector<int> joined{};
  // The newest generation in which all of its members on this host have met the others.
  int trains = -1;
  // The generation in which none of this host's members has made progress for --hang-timeout, and
  // how far they have got; -1 while any goes on.
  int stands_still = -1;
  std::vector<MemberProgress> progress{};
  // Whether it waits until the job has a place for its ranks.
  bool waits = true;

  bool operator==(const HostRecord&) const = default;
};

std::string encode(const HostRecord& record);
// BackendError if the bytes are no record.
HostRecord decode_host(std::string_view bytes);

// The hosts that live, by their names.
using LiveHosts = std::map<std::string, HostRecord>;

// The record that all agents share. Each may change it, by these functions and one after another.
struct ClusterJob {
  // What all agents must have been told alike, in words: hosts, ranks and limits.
  std::string terms{};
  // With the number -1 before the first one.
  Generation generation{.number = -1};
  // The host of each member that runs, in the generation or as a newcomer.
  std::map<int, std::string> hosts{};
  // Whether all of its members have met in the generation.
  bool trains = false;
  // Members that have completed the training and still run.
  std::vector<int> completed{};
  // How many members have completed it.
  int finished = 0;
  int next_member = 0;
  // The most ranks that it may have: what --elastic says, until `lockstep resize` asks for a
  // number.
  int limit = 0;
  // That number, until the request is followed; 0 without one.
  int wish = 0;
  // Members that no generation has any more, since fewer ranks are wanted, also those that have
  // ended.
  std::vector<int> leaving{};
  // If the members of all hosts stand still: those for which the others wait. To be killed.
  std::vector<int> hanging{};
  // Why the job cannot go on; empty as long as it can.
  std::string failure{};

  bool operator==(const ClusterJob&) const = default;

  // Opens the first generation, with so many ranks on each of these hosts, in this order.
  void found(const std::vector<std::string>& names, int ranks, const LiveHosts& live);
  // From now on, so many ranks are wanted.
  void resize(int ranks);
  // Further members on this host, which are to join; fewer if the job has had as many as it may.
  void add_newcomers(const std::string& host, int count);
  // The member has completed the training. As in ElasticMembers, it has no part in later
  // generations, nobody joins any more, and the job fails if the member does.
  void complete(int member);
  // The member has ended, with exit code 0 or without. `what` says how.
  void end(int member, bool success, const std::string& what);
  // The member is ended by its agent, and missed by nobody: a newcomer that is late.
  void dismiss(int member);

  // Draws the conclusions: removes the members of hosts that do not live; opens a generation
  // without those that were lost; or else follows the wish for more or fewer ranks, and opens one
  // without those that leave, or with newcomers, once all members train. Fails if fewer than
  // `least` members are left.
  void settle(const LiveHosts& live, int least);

  std::vector<int> members_on(const std::string& host) const;
  // How many ranks it has, newcomers included, without those that have completed the training or
  // leave.
  int ranks() const;

 private:
  void open(const LiveHosts& live);
  // False if the job has failed.
  bool remove_lost(const LiveHosts& live, int least);
  void find_hanging(const LiveHosts& live);
  void start_wanted(const LiveHosts& live);
  void let_leave(const LiveHosts& live);
  void admit_newcomers(const LiveHosts& live);
  // Whether it runs, and is to go on.
  bool counts(int member) const;
  bool is_newcomer(int member) const;
};

std::string encode(const ClusterJob& job);
// BackendError if the bytes are no such record.
ClusterJob decode_job(std::string_view bytes);

}  // namespace lockstep
