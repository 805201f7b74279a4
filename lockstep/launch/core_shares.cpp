// SPDX-License-Identifier: BSD-3-Clause
// Splits the cores, and pins ranks only if the launch can claim all of them.
#include "lockstep/launch/core_shares.h"

#include "lockstep/core/process/cpu.h"

namespace lockstep {

std::optional<std::vector<std::vector<int>>> split_cores(const std::vector<int>& cores, int ranks,
                                                         int threads_per_rank) {
  const auto share = static_cast<std::size_t>(threads_per_rank);
  if (ranks < 2 || cores.size() != static_cast<std::size_t>(ranks) * share) return std::nullopt;
  std::vector<std::vector<int>> shares;
  for (auto first = cores.begin(); first != cores.end(); first += threads_per_rank) {
    shares.emplace_back(first, first + threads_per_rank);
  }
  return shares;
}

CoreShares::CoreShares(int ranks, int threads_per_rank) {
  const std::vector<int> cores = allowed_cores();
  auto shares = split_cores(cores, ranks, threads_per_rank);
  // Under a quota, a rank that may move between cores is throttled less often.
  if (!shares || available_cores() < static_cast<int>(cores.size())) return;
  claim_.emplace(cores);
  if (claim_->held()) shares_ = std::move(*shares);
}

void CoreShares::pin(int rank) const {
  if (!shares_.empty()) pin_to_cores(shares_[static_cast<std::size_t>(rank)]);
}

}  // namespace lockstep
