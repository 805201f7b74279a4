// SPDX-License-Identifier: BSD-3-Clause
// Ranks that must say that they have begun (AgentOptions::arrival): finds those that do not.
#pragma once

#include <map>
#include <optional>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/failure_decision.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

class ArrivalWatch {
 public:
  // Keeps the references. Ranks after the first `first_ranks` are newcomers of an elastic job.
  ArrivalWatch(const Arrival& arrival, int first_ranks, LocalRanks& ranks,
               const LocalStoreServer& store)
      : arrival_(arrival), first_ranks_(first_ranks), ranks_(ranks), store_(store) {}

  // Decides which of the first ranks is absent, and notes why as its end: one that has ended or,
  // if they are `late`, still runs without having arrived. nullopt if there is none.
  std::optional<FailureDecision> find_absent(bool late);
  // Kills newcomers that have not arrived in time.
  void kill_late_newcomers();
  // The launcher and its ranks were stopped for a while: newcomers get their time anew.
  void forget_time() { newcomers_.clear(); }

 private:
  bool has_arrived(int rank) const;

  const Arrival& arrival_;
  const int first_ranks_;
  LocalRanks& ranks_;
  const LocalStoreServer& store_;
  // By when each newcomer that has not arrived must do so.
  std::map<int, Deadline> newcomers_;
};

}  // namespace lockstep
