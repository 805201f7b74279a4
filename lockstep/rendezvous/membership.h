// SPDX-License-Identifier: BSD-3-Clause
// Public. The result of a rendezvous: which rank of the job this process is, and where the others
// are.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/process/process_identity.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep {

class LossRecord;

struct Membership {
  int rank = 0;
  int world_size = 1;
  // These count ranks of the job, also in the membership of a subgroup. In an elastic job, the
  // local rank is the member's place (elastic_job.h), which may be any number, and until the roll
  // call the other one may be 0: unknown.
  int local_rank = 0;
  int local_world_size = 1;
  // The number of this membership within its job, which is part of its keys in the store: 0, except
  // in an elastic job.
  int generation = 0;
  // Null for a world size of one.
  std::shared_ptr<Store> store;
  // Where the other ranks can reach rank 0: a host name or an address. Empty if all ranks are on
  // one machine.
  std::string address = {};
  // The secret of this user's jobs; empty if there is none.
  std::string secret = {};
  // In a subgroup, the job's rank number of each of its ranks. Empty if both numberings agree.
  std::vector<int> job_ranks = {};
  // The processes of the job's ranks, indexed by job rank; empty before the roll call.
  std::vector<ProcessIdentity> processes = {};
  // The record in which this rank's groups note a lost rank. Null if ranks are threads.
  std::shared_ptr<LossRecord> losses = {};

  int job_rank(int of) const {
    return job_ranks.empty() || of < 0 ? of : job_ranks[static_cast<std::size_t>(of)];
  }
  // This rank's membership in the subgroup of these ranks, which are numbered in list order.
  Membership part(const std::vector<int>& ranks) const {
    Membership member = *this;
    member.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    member.world_size = static_cast<int>(ranks.size());
    member.job_ranks.clear();
    for (const int of : ranks) member.job_ranks.push_back(job_rank(of));
    return member;
  }
  // Whether all ranks are known to share one machine; the same answer on every rank. A PID
  // namespace, such as a container has, counts as a machine of its own.
  bool on_one_machine() const {
    const std::string machine = process(0).machine;
    if (machine.empty()) return false;
    for (int of = 1; of < world_size; ++of) {
      if (process(of).machine != machine) return false;
    }
    return true;
  }
  // The process of rank `of`; if unknown, an identity that never counts as ended.
  ProcessIdentity process(int of) const {
    return processes.empty() ? ProcessIdentity()
                             : processes[static_cast<std::size_t>(job_rank(of))];
  }
};

}  // namespace lockstep
