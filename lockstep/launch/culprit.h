// SPDX-License-Identifier: BSD-3-Clause
// Finds the rank that made a job fail: the one that did not fail because it lost another rank.
#pragma once

#include <optional>
#include <vector>

#include <signal.h>

#include "lockstep/launch/exit_status.h"
#include "lockstep/rendezvous/losses.h"

namespace lockstep {

// What the launcher knows of a rank of this machine.
struct RankEnd {
  // Nothing while it runs.
  std::optional<ExitStatus> status{};
  // In which round of the event loop its end was noticed; ends noticed at once have the same
  // number.
  int noticed = 0;
  // The signal that has stopped it, or 0.
  int stopped_by = 0;
  // The rank that it lost, as it says itself.
  std::optional<Loss> loss{};

  bool failed() const { return status && !status->success(); }
  // The loss that explains its end, or null. A signal ends a rank whatever it has lost before; but
  // SIGABRT may be the end of an exception that nobody caught.
  const Loss* cause() const {
    const bool by_signal = status && status->signal != 0 && status->signal != SIGABRT;
    return loss && !by_signal ? &*loss : nullptr;
  }
};

struct Culprit {
  // Counted in the job; it may be one of another machine.
  int rank = 0;
  // The rank that lost it, and the loss as that rank reports it; -1 if the culprit's own end says
  // enough.
  int lost_by = -1;
  Loss loss{};
  // Waiting may show another culprit or more about this one: it still runs, or a rank of this
  // machine may yet fail by itself.
  bool may_change = false;
};

// `ranks` are those of this machine, from this number on. Nothing if none has failed. Of several
// that fail by themselves the first; of those at once, one that a signal killed.
std::optional<Culprit> find_culprit(const std::vector<RankEnd>& ranks, int first_rank);

}  // namespace lockstep
