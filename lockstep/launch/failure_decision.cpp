// SPDX-License-Identifier: BSD-3-Clause
// Adds graces to the culprit that is found, and puts its failure in words.
#include "lockstep/launch/failure_decision.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// How long a lost rank may take to end by itself, since its own end says more than the others'
// reports of the loss. Shorter for a rank that was only silent, since it most likely hangs.
constexpr milliseconds kLostRankGrace{2000};
constexpr milliseconds kSilentRankGrace{1000};
// Gives ranks time to report a loss to other machines before they are ended; otherwise ranks there
// would mistake that end for the cause.
constexpr milliseconds kOtherMachinesGrace{500};

milliseconds grace_for(const Culprit& culprit, bool other_machines) {
  if (culprit.may_change) return culprit.loss.silent ? kSilentRankGrace : kLostRankGrace;
  return other_machines ? kOtherMachinesGrace : milliseconds(0);
}

}  // namespace

std::optional<FailureDecision> decide_failure(const std::vector<RankEnd>& ends, int first_rank,
                                              bool other_machines) {
  const auto culprit = find_culprit(ends, first_rank);
  if (!culprit) return std::nullopt;
  FailureDecision decision{.culprit = *culprit};
  const auto index = static_cast<std::size_t>(culprit->rank - first_rank);
  if (index < ends.size()) decision.end = ends[index];
  const auto runs = [](const RankEnd& end) { return !end.status; };
  if (std::ranges::any_of(ends, runs)) decision.grace = grace_for(*culprit, other_machines);
  return decision;
}

std::optional<FailureDecision> decide_absence(const std::vector<RankEnd>& ends, int first_rank,
                                              bool deadline_passed,
                                              const std::function<bool(int)>& has_arrived) {
  for (int index = 0; index < static_cast<int>(ends.size()); ++index) {
    const RankEnd& end = ends[static_cast<std::size_t>(index)];
    const bool due = end.status ? end.status->success() : deadline_passed;
    if (!due || has_arrived(index)) continue;
    FailureDecision decision;
    decision.end = end;
    decision.culprit.rank = first_rank + index;
    return decision;
  }
  return std::nullopt;
}

RankFailure report_of(const FailureDecision& decision, const RankRecord* record) {
  const Culprit& culprit = decision.culprit;
  const RankEnd& end = decision.end;
  const std::string report = fmt::format("rank {} reports: {}", culprit.lost_by, culprit.loss.text);
  if (record == nullptr) return {culprit.rank, 0, 1, 0, report, {}};
  RankFailure failure{culprit.rank, record->pid, 1, 0, {}, record->last_lines};
  if (culprit.lost_by < 0 || end.failed()) {
    if (end.status) {
      failure.exit_code = end.status->code();
      failure.signal = end.status->signal;
    }
    failure.cause = record->last_words.empty() ? record->end : record->last_words;
  } else if (end.status) {
    failure.exit_code = 0;
    failure.cause = "ended with code 0 before the others; " + report;
  } else if (end.stopped_by != 0) {
    failure.cause = fmt::format("stopped by {}; {}", signal_words(end.stopped_by), report);
  } else {
    failure.cause = "was lost while it still ran; " + report;
  }
  return failure;
}

}  // namespace lockstep
