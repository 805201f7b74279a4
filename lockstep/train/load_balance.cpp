// SPDX-License-Identifier: BSD-3-Clause
// Divides microbatches by the speeds of ranks, and measures these.
#include "lockstep/train/load_balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

// The time until the slowest rank has computed its run.
double slowest(std::span<const LeafRange> runs, std::span<const double> seconds) {
  double most = 0;
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    most = std::max(most, static_cast<double>(runs[rank].size()) * seconds[rank]);
  }
  return most;
}

// The upper one of two.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The mean without the extremes; 0 of none. A rank that shares its core has fast steps and slow
// ones, by the scheduler's time slices, so that a median would be one or the other.
double trimmed_mean(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto extremes = static_cast<std::ptrdiff_t>(values.size() / 8);
  const auto first = values.begin() + extremes;
  const auto last = values.end() - extremes;
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

template <class Number>
double median_of_others(std::span<const RankLoad> loads, std::size_t rank, const Number& number) {
  std::vector<double> values;
  for (std::size_t other = 0; other < loads.size(); ++other) {
    if (other != rank) values.push_back(number(loads[other]));
  }
  return median(std::move(values));
}

}  // namespace

// The next microbatch goes to the rank that ends first with it. No other division ends sooner: it
// would give a rank more than this one does, which ends no sooner than the last one to get any.
std::vector<LeafRange> balanced_runs(std::span<const double> seconds, std::int64_t microbatches) {
  std::vector<std::int64_t> shares(seconds.size(), 1);
  const auto ranks = static_cast<std::int64_t>(seconds.size());
  for (std::int64_t given = ranks; given < microbatches; ++given) {
    const auto end_with_one_more = [&](std::size_t rank) {
      return static_cast<double>(shares[rank] + 1) * seconds[rank];
    };
    std::size_t first = 0;
    for (std::size_t rank = 1; rank < shares.size(); ++rank) {
      if (end_with_one_more(rank) < end_with_one_more(first)) first = rank;
    }
    ++shares[first];
  }
  std::vector<LeafRange> runs;
  std::int64_t begin = 0;
  for (const std::int64_t share : shares) {
    runs.push_back({begin, begin + share});
    begin += share;
  }
  return runs;
}

std::optional<std::vector<LeafRange>> better_runs(std::span<const LeafRange> runs,
                                                  std::span<const RankLoad> loads) {
  constexpr double kClearlyShorter = 0.95;
  std::vector<double> seconds;
  for (const RankLoad& load : loads) {
    seconds.push_back(load.seconds());
    if (!std::isfinite(seconds.back()) || seconds.back() <= 0) return std::nullopt;
  }
  std::vector<LeafRange> balanced = balanced_runs(seconds, runs.back().end);
  if (slowest(balanced, seconds) > kClearlyShorter * slowest(runs, seconds)) return std::nullopt;
  return balanced;
}

std::string load_text(std::span<const LeafRange> runs, std::span<const RankLoad> loads) {
  const auto found = std::ranges::max_element(loads, {}, &RankLoad::seconds);
  const auto rank = static_cast<std::size_t>(found - loads.begin());
  const auto computing = [](const RankLoad& load) { return load.computing; };
  const auto data = [](const RankLoad& load) { return load.data; };
  // The last rank to arrive waits for none.
  const double exchange = std::ranges::min(loads, {}, &RankLoad::exchange).exchange;
  std::vector<std::int64_t> shares;
  for (const LeafRange& run : runs) shares.push_back(run.size());
  return fmt::format(
      "rank {} computes for {:.1f} ms per microbatch and waits {:.1f} ms for its data, the other{} "
      "{:.1f} and {:.1f} ms; exchanging gradients takes {:.1f} ms: shares {}",
      rank, found->computing * 1e3, found->data * 1e3, loads.size() > 2 ? "s" : "",
      median_of_others(loads, rank, computing) * 1e3, median_of_others(loads, rank, data) * 1e3,
      exchange * 1e3, fmt::join(shares, " "));
}

void LoadMeter::begin(Activity activity) {
  const auto now = Clock::now();
  seconds_[static_cast<std::size_t>(activity_)] +=
      std::chrono::duration<double>(now - since_).count();
  since_ = now;
  activity_ = activity;
}

double LoadMeter::take(Activity activity) {
  return std::exchange(seconds_[static_cast<std::size_t>(activity)], 0);
}

void LoadMeter::end_microbatches(std::size_t microbatches) {
  const auto count = static_cast<double>(microbatches);
  computing_.push_back(take(Activity::computing) / count);
  data_.push_back(take(Activity::data) / count);
}

void LoadMeter::end_exchange() {
  exchange_.push_back(take(Activity::exchange));
}

void LoadMeter::forget_step() {
  begin(Activity::other);
  seconds_ = {};
}

RankLoad LoadMeter::load() const {
  return {.computing = trimmed_mean(computing_),
          .data = trimmed_mean(data_),
          .exchange = trimmed_mean(exchange_)};
}

void LoadMeter::clear() {
  computing_.clear();
  data_.clear();
  exchange_.clear();
}

}  // namespace lockstep
