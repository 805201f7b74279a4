// SPDX-License-Identifier: BSD-3-Clause
// What a rendezvous yields: who this process is among the ranks of a job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/process_identity.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep {

class LossRecord;

struct Membership {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  // Counts the memberships of one job; it changes when a rank is lost or joins.
  int generation = 0;
  // Null for a world of one, which has nobody to meet.
  std::shared_ptr<Store> store;
  // Where the other ranks can reach rank 0: a host name or an address. Empty if all ranks are on
  // one machine.
  std::string address = {};
  // What only the ranks of this user's jobs know; empty if there is none.
  std::string secret = {};
  // In a subgroup, the number in the job of each of its ranks. Empty if both numberings are the
  // same.
  std::vector<int> job_ranks = {};
  // The processes of the job's ranks, by their numbers in the job; empty before the roll call.
  std::vector<ProcessIdentity> processes = {};
  // Where this rank's groups note that they lost another rank. Null if ranks are threads.
  std::shared_ptr<LossRecord> losses = {};

  int job_rank(int of) const {
    return job_ranks.empty() || of < 0 ? of : job_ranks[static_cast<std::size_t>(of)];
  }
  // If it is unknown, one that never ends.
  ProcessIdentity process(int of) const {
    return processes.empty() ? ProcessIdentity()
                             : processes[static_cast<std::size_t>(job_rank(of))];
  }
};

}  // namespace lockstep
