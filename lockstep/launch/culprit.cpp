// SPDX-License-Identifier: BSD-3-Clause
// Follows reported losses from the first failed rank to the culprit.
#include "lockstep/launch/culprit.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace lockstep {
namespace {

bool earlier(const RankEnd& one, const RankEnd& other) {
  const auto order = [](const RankEnd& end) {
    return std::tuple(end.noticed, end.cause() != nullptr, end.status->signal == 0);
  };
  return order(one) < order(other);
}

}  // namespace

std::optional<Culprit> find_culprit(const std::vector<RankEnd>& ranks, int first_rank) {
  const RankEnd* first = nullptr;
  const RankEnd* first_by_itself = nullptr;
  for (const RankEnd& end : ranks) {
    if (!end.failed()) continue;
    if (first == nullptr || earlier(end, *first)) first = &end;
    if (end.cause() != nullptr) continue;
    if (first_by_itself == nullptr || earlier(end, *first_by_itself)) first_by_itself = &end;
  }
  if (first == nullptr) return std::nullopt;

  const auto number = [&](const RankEnd* end) {
    return first_rank + static_cast<int>(end - ranks.data());
  };
  const auto of_this_machine = [&](int rank) {
    return rank >= first_rank && rank - first_rank < static_cast<int>(ranks.size());
  };
  // A rank that a signal has stopped keeps other ranks waiting. When they give up, they may
  // blame another late rank.
  for (const RankEnd& stopped : ranks) {
    if (stopped.status || stopped.stopped_by == 0) continue;
    for (const RankEnd& end : ranks) {
      const Loss* loss = end.cause();
      if (loss == nullptr || !loss->silent) continue;
      return Culprit{.rank = number(&stopped), .lost_by = number(&end), .loss = *loss};
    }
  }
  // Follows the losses from the first failed rank, as far as they are known.
  Culprit culprit{.rank = number(first)};
  std::set<int> seen{culprit.rank};
  while (of_this_machine(culprit.rank)) {
    const Loss* loss = ranks[static_cast<std::size_t>(culprit.rank - first_rank)].cause();
    if (loss == nullptr) break;
    // The ranks waited for each other in a cycle: none is more to blame than the first.
    if (!seen.insert(loss->rank).second) return Culprit{.rank = number(first)};
    culprit = {.rank = loss->rank, .lost_by = culprit.rank, .loss = *loss};
  }
  const RankEnd* end = of_this_machine(culprit.rank)
                           ? &ranks[static_cast<std::size_t>(culprit.rank - first_rank)]
                           : nullptr;
  if (end != nullptr && (end->status || end->stopped_by != 0)) return culprit;
  if (first_by_itself != nullptr) return Culprit{.rank = number(first_by_itself)};
  culprit.may_change = true;
  return culprit;
}

}  // namespace lockstep
