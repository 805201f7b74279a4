// SPDX-License-Identifier: BSD-3-Clause
// How one attempt at a job ended, on one machine or on all of them; whether another attempt may
// follow, how long to wait before it, and the texts about it. Without processes and clocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/rank_reports.h"

namespace lockstep {

inline constexpr const char* kToldToStop = "the job was told to stop";

struct AttemptEnd {
  // The attempt's number, from 0.
  int attempt = 0;
  // As in AgentResult.
  int exit_code = 0;
  int signal = 0;
  // Why no attempt may follow this one, whatever the failure, as text: the job was told to stop, or
  // a launcher cannot go on. Empty if nothing forbids it.
  std::string why_last{};
  std::optional<RankFailure> failure{};
  // The machine of the rank that failed first, or of the fault; empty if there is one machine, or
  // if it is not known.
  std::optional<int> machine{};
  // A failure without a rank, as text: "the keeper of the ranks (pid 7) was lost". Empty if there
  // is none.
  std::string fault{};
  // The training steps of the job, as rank 0 has reported them last; empty if it has not.
  std::optional<std::int64_t> steps{};
  // From the start of the ranks to the end of the last one.
  std::chrono::milliseconds duration{};

  bool failed() const { return failure || !fault.empty(); }
};

// The end of the whole job's attempt. `machines` has the ends on machines 0, 1, ... A rank that its
// own machine reports counts before one that another machine's ranks have lost.
AttemptEnd whole_end(const std::vector<AttemptEnd>& machines);

// Why no attempt follows one that has this end, as text; empty if one may follow. A job that went
// well or was told to stop is not restarted; neither is one whose rank ended with code 2, 126 or
// 127, by which programs and shells report wrong usage and a program that cannot be executed.
std::string why_no_restart(const AttemptEnd& end, int max_restarts);

// How long to wait before the next attempt: a second, doubled for each attempt in a row that ended
// within a minute, and 30 s at most. `durations` has the attempts so far and is not empty.
std::chrono::milliseconds back_off(const std::vector<std::chrono::milliseconds>& durations);

// "rank 1 of 2 (pid 4711) failed first: exit code 3", or the fault. `ranks` counts the ranks of all
// machines. Call it only for an end that failed().
std::string failure_in_words(const AttemptEnd& end, int ranks);

// "the last lines of rank 1:" and the lines; empty if there are none.
std::string last_lines_in_words(const RankFailure& failure);

// About a job that has failed and is not restarted: a line for each attempt, why none follows, and
// the last lines of the rank that failed first in the last attempt.
std::string summary(const std::vector<AttemptEnd>& attempts, int ranks, const std::string& why);

}  // namespace lockstep
