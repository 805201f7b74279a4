// SPDX-License-Identifier: BSD-3-Clause
// Members that are to leave an elastic job at the end of a step, since fewer ranks are wanted:
// ends them once they have left.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/rendezvous/elastic_board.h"

namespace lockstep {

class LeavingMembers {
 public:
  // `rank_of` finds a member's process.
  LeavingMembers(const ElasticBoard& board, std::function<LocalRanks::Rank&(int member)> rank_of)
      : board_(board), rank_of_(std::move(rank_of)) {}

  void add(int member) { leaving_.emplace(member, Leaving{}); }
  bool empty() const { return leaving_.empty(); }
  bool contain(int member) const { return leaving_.contains(member); }
  // Those that are still in a step, in which the others may wait for them.
  std::vector<int> in_step() const;

  // Tells those that wait for it to end, by SIGTERM, and kills those that do not end in time after
  // they have left: when they say so, or when the others have met without them (`others_go_on`).
  // Adds a line about each that has failed meanwhile.
  void end(bool others_go_on, std::vector<std::string>& lines);

  // The launcher and its ranks were stopped for a while: all get their time anew.
  void forget_time();

 private:
  struct Leaving {
    // Once it has left: until when it may go on with something else.
    std::optional<Deadline> until;
    // Whether it was sent SIGTERM, for which it waits.
    bool told = false;
  };

  const ElasticBoard& board_;
  const std::function<LocalRanks::Rank&(int member)> rank_of_;
  std::map<int, Leaving> leaving_;
};

}  // namespace lockstep
