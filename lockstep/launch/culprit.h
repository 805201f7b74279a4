// SPDX-License-Identifier: BSD-3-Clause
// Which rank a job failed by: the one whose failure is not the loss of another rank.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/launch/exit_status.h"
#include "lockstep/rendezvous/losses.h"

namespace lockstep {

// What the launcher knows of a rank of this machine.
struct RankEnd {
  // Nothing while it runs.
  std::optional<ExitStatus> status{};
  // Counts the looks at the ranks: ends that were noticed at once have the same.
  int noticed = 0;
  // The signal that has stopped it, or 0.
  int stopped_by = 0;
  // The rank that it lost, as it says itself.
  std::optional<Loss> loss{};

  bool failed() const { return status && !status->success(); }
};

struct Culprit {
  // Counted in the job; it may be one of another machine.
  int rank = 0;
  // The rank that lost it, and what that says; -1 if its own end tells all.
  int lost_by = -1;
  Loss loss{};
  // Its own end may still come, or that of a rank of this machine that is the cause.
  bool may_change = false;
};

// `ranks` are those of this machine, from this number on. Nothing if none has failed. Of several
// that fail by themselves the first; of those at once, one that a signal killed.
std::optional<Culprit> find_culprit(const std::vector<RankEnd>& ranks, int first_rank);

}  // namespace lockstep
