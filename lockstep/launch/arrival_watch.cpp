// SPDX-License-Identifier: BSD-3-Clause
// Looks into the launch's store, where ranks say that they have begun.
#include "lockstep/launch/arrival_watch.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <signal.h>

namespace lockstep {

bool ArrivalWatch::has_arrived(int rank) const {
  return store_.value(arrival_.key + std::to_string(rank)).has_value();
}

std::optional<FailureDecision> ArrivalWatch::find_absent(bool late) {
  if (!late && std::ranges::none_of(ranks_.all(), &LocalRanks::Rank::ended)) return std::nullopt;
  std::vector<RankEnd> ends = ranks_.ends(store_);
  ends.resize(static_cast<std::size_t>(first_ranks_));
  const int first = ranks_.job_rank(ranks_.all().front());
  const auto decision =
      decide_absence(ends, first, late, [this](int rank) { return has_arrived(rank); });
  if (!decision) return std::nullopt;
  LocalRanks::Rank& absent = ranks_.all()[static_cast<std::size_t>(decision->culprit.rank - first)];
  absent.end = absent.ended ? arrival_.never : arrival_.late;
  return decision;
}

void ArrivalWatch::kill_late_newcomers() {
  std::vector<LocalRanks::Rank>& all = ranks_.all();
  for (auto rank = all.begin() + first_ranks_; rank != all.end(); ++rank) {
    const int number = rank->process.rank();
    if (rank->ended || has_arrived(number)) continue;
    const auto in_time = Deadline::after(arrival_.span);
    const auto [until, is_new] = newcomers_.try_emplace(number, in_time);
    if (is_new || !until->second.passed()) continue;
    rank->end = arrival_.late;
    rank->process.signal(SIGKILL);
  }
}

}  // namespace lockstep
