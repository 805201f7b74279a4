// SPDX-License-Identifier: BSD-3-Clause
// Divides cores among ranks as threads, and pins ranks only if the launch can claim all cores.
#include "lockstep/launch/core_shares.h"

#include <algorithm>
#include <string>

#include "lockstep/core/process/cpu.h"

namespace lockstep {
namespace {

constexpr const char* kOpenMp = "OMP_NUM_THREADS";
constexpr const char* kOpenBlas = "OPENBLAS_NUM_THREADS";

}  // namespace

int threads_per_rank(int ranks, std::optional<int> threads) {
  if (threads) return *threads;
  return omp_num_threads().value_or(std::max(1, available_cores() / ranks));
}

EnvironmentVariables thread_environment(int ranks, std::optional<int> threads) {
  const std::string count = std::to_string(threads_per_rank(ranks, threads));
  if (threads) return {{kOpenMp, count}, {kOpenBlas, count}};
  EnvironmentVariables variables;
  // OpenBLAS follows OMP_NUM_THREADS if its own variable is unset.
  if (!environment(kOpenMp)) {
    variables.emplace_back(kOpenMp, count);
    if (!environment(kOpenBlas)) variables.emplace_back(kOpenBlas, count);
  }
  return variables;
}

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
