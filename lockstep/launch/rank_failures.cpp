// SPDX-License-Identifier: BSD-3-Clause
// The part of RankWatch that finds the rank that failed first, and reports it.
#include <algorithm>

#include <fmt/format.h>

#include "lockstep/launch/rank_watch.h"

namespace lockstep {
namespace {

// How long a lost rank may take to end by itself, since its own end says more than the others'
// reports of the loss. Shorter for a rank that was only silent, since it most likely hangs.
constexpr std::chrono::milliseconds kCauseGrace{2000};
constexpr std::chrono::milliseconds kSilenceGrace{1000};
// Gives ranks time to report a loss to other machines before they are ended; otherwise ranks there
// would mistake that end for the cause.
constexpr std::chrono::milliseconds kOtherMachinesGrace{500};

}  // namespace

void RankWatch::take_ends() {
  ++looks_;
  for (Rank& rank : ranks_) {
    if (rank.ended || !rank.process.status()) continue;
    rank.ended = true;
    rank.noticed = looks_;
    if (!rank.end.empty()) continue;
    const ExitStatus& status = *rank.process.status();
    rank.end = status.words(memory_kills_);
    if (status.success() || !notices_.contains(status.signal)) continue;
    rank.end +=
        ", which its launcher got and passed on; handle or ignore the signal in the program";
  }
}

RankEnd RankWatch::end_of(Rank& rank) const {
  const int of_all = first_rank() + rank.process.rank();
  const auto reported = store_.value(loss_key(of_all));
  return {.status = rank.process.status(),
          .noticed = rank.noticed,
          .stopped_by = rank.process.stopped_by(),
          .loss = reported ? decode_loss(*reported) : std::nullopt};
}

void RankWatch::take_failure() {
  if (culprit_ || result_.signal != 0) return;
  const auto failed = [](Rank& rank) { return rank.ended && !rank.process.status()->success(); };
  if (std::ranges::none_of(ranks_, failed)) return;
  std::vector<RankEnd> ends;
  for (Rank& rank : ranks_) ends.push_back(end_of(rank));
  const auto culprit = find_culprit(ends, first_rank());
  const auto grace = culprit->may_change ? culprit->loss.silent ? kSilenceGrace : kCauseGrace
                     : options_.node     ? kOtherMachinesGrace
                                         : std::chrono::milliseconds(0);
  if (grace.count() > 0 && running()) {
    if (!decide_at_ || grace < decide_at_->remaining()) decide_at_ = Deadline::after(grace);
    if (!decide_at_->passed()) return;
  }
  culprit_ = culprit;
  const auto index = static_cast<std::size_t>(culprit->rank - first_rank());
  if (index < ends.size()) culprits_end_ = ends[index];
  decide_at_.reset();
  stop(SIGTERM, options_.stop_grace);
}

RankFailure RankWatch::failure_of(const Culprit& culprit) {
  const std::string report = fmt::format("rank {} reports: {}", culprit.lost_by, culprit.loss.text);
  const auto index = static_cast<std::size_t>(culprit.rank - first_rank());
  if (index >= ranks_.size()) return {culprit.rank, 0, 1, 0, report, {}};
  Rank& rank = ranks_[index];
  RankFailure failure{culprit.rank, rank.process.pid(), 1, 0, {}, rank.output.last_lines()};
  if (culprit.lost_by < 0 || culprits_end_.failed()) {
    const std::string words = rank.process.last_words();
    if (const auto& status = culprits_end_.status) {
      failure.exit_code = status->code();
      failure.signal = status->signal;
    }
    failure.cause = words.empty() ? rank.end : words;
  } else if (culprits_end_.status) {
    failure.exit_code = 0;
    failure.cause = "ended with code 0 before the others; " + report;
  } else if (culprits_end_.stopped_by != 0) {
    failure.cause =
        fmt::format("stopped by {}; {}", signal_words(culprits_end_.stopped_by), report);
  } else {
    failure.cause = "was lost while it still ran; " + report;
  }
  return failure;
}

}  // namespace lockstep
