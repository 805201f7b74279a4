// SPDX-License-Identifier: BSD-3-Clause
// Finds the rank that made a job fail: one that did not fail because it lost another rank.
#pragma once

#include <optional>
#include <vector>

#include <signal.h>

#include "lockstep/launch/exit_status.h"
#include "lockstep/rendezvous/losses.h"

namespace lockstep {

// The launcher's knowledge of a rank of this machine.
struct RankEnd {
  // nullopt while it runs.
  std::optional<ExitStatus> status{};
  // The round of the event loop that noticed its end; ends noticed together have the same number.
  int noticed = 0;
  // The signal that has stopped it, or 0.
  int stopped_by = 0;
  // The lost rank, as this rank reports it.
  std::optional<Loss> loss{};

  bool failed() const { return status && !status->success(); }
  // The loss that explains its end, or null. A rank killed by a signal did not end because of an
  // earlier loss; but SIGABRT may come from an uncaught exception.
  const Loss* cause() const {
    const bool by_signal = status && status->signal != 0 && status->signal != SIGABRT;
    return loss && !by_signal ? &*loss : nullptr;
  }
};

struct Culprit {
  // A job rank; it may be on another machine.
  int rank = 0;
  // The rank that lost the culprit, and the loss as that rank reports it; -1 if the culprit's own
  // end says enough.
  int lost_by = -1;
  Loss loss{};
  // Waiting may reveal another culprit or more about this one: it still runs, or a rank of this
  // machine may yet fail by itself.
  bool may_change = false;
};

// `ranks` are this machine's ranks, numbered from `first_rank`. nullopt if none has failed.
// If several ranks failed by themselves, returns the first; if several did at once, one that a
// signal killed.
std::optional<Culprit> find_culprit(const std::vector<RankEnd>& ranks, int first_rank);

}  // namespace lockstep
