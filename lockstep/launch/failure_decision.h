// SPDX-License-Identifier: BSD-3-Clause
// Decides which rank a launcher reports as the one that failed first, how long it waits for news
// before it stops the others, and what it reports. Without processes and clocks, as culprit.h.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/launch/culprit.h"
#include "lockstep/launch/rank_reports.h"

namespace lockstep {

struct FailureDecision {
  Culprit culprit{};
  // The culprit's end at the time of the decision; for a culprit on another machine, the end of a
  // rank that still runs.
  RankEnd end{};
  // How long to wait before the other ranks are stopped: for news that may change the decision, or
  // until ranks have reported to other machines. 0 if nothing more is expected.
  std::chrono::milliseconds grace{};
};

// `ends` are the ends of this machine's ranks, numbered from `first_rank`. nullopt if none has
// failed.
std::optional<FailureDecision> decide_failure(const std::vector<RankEnd>& ends, int first_rank,
                                              bool other_machines);

// For ranks that must arrive: the first one that has ended with code 0 without having arrived or,
// after the deadline, still runs without having arrived. has_arrived() takes an index of `ends`.
// nullopt if there is none.
std::optional<FailureDecision> decide_absence(const std::vector<RankEnd>& ends, int first_rank,
                                              bool deadline_passed,
                                              const std::function<bool(int)>& has_arrived);

// The launcher's record of a rank of this machine that has ended.
struct RankRecord {
  pid_t pid = 0;
  // How it ended, or that it was late, as text.
  std::string end;
  // Why it ended, in its own words; empty if it left none.
  std::string last_words;
  std::vector<std::string> last_lines;
};

// The report about the culprit. `record` is null if the culprit is on another machine.
RankFailure report_of(const FailureDecision& decision, const RankRecord* record);

}  // namespace lockstep
