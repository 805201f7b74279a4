// SPDX-License-Identifier: BSD-3-Clause
// Repeats a collective on known elements, times it alternately with the triad, and checks the
// results.
#include "tools/bench/collective_bench.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "tools/bench/known_elements.h"
#include "tools/bench/measurements.h"
#include "tools/bench/triad.h"

namespace lockstep::bench {
namespace {

constexpr int kBroadcastRoot = 0;
constexpr double kMebibyte = 1024 * 1024;
// Turns spread measurements over the run, so that a disturbance affects everything that is
// compared.
constexpr int kTurns = 4;
constexpr int kWarmUps = 5;
constexpr double kSecondsAMeasurement = 0.1;
// The clock would dominate shorter measurements.
constexpr double kShortestMeasurement = 20e-6;

// The tensors of this rank, with their contents before and after a call.
class Run {
 public:
  Run(ProcessGroup& group, const CollectiveBench& bench, std::int64_t bytes)
      : group_(group), bench_(bench) {
    const auto size = static_cast<std::int64_t>(at::elementSize(bench.type));
    elements_ = std::max<std::int64_t>(bytes / size, 1);
    if (in_parts()) elements_ = std::max<std::int64_t>(elements_ / group.size(), 1) * group.size();
    const std::int64_t part = elements_ / group.size();
    whole_ = make(elements_);
    if (in_parts()) {
      part_ = make(part);
      parts_ = whole_.split(part);
    }
    for (int round = 0; round < kRounds; ++round) {
      originals_[round] = at::empty_like(input());
      fill(originals_[round],
           [&](std::int64_t i) { return known_element(reduction(), group_.rank(), i, round); });
    }
  }

  std::int64_t bytes() const {
    return elements_ * static_cast<std::int64_t>(at::elementSize(bench_.type));
  }

  // Uses memcpy, as a C program would: the time of copy_() varies by as much as a small sum takes,
  // and ranks that reach the barrier at different times also leave it at different times.
  void rewrite(int round) {
    const at::Tensor& original = originals_[round];
    std::memcpy(input().data_ptr(), original.data_ptr(), original.nbytes());
  }

  void perform() {
    switch (bench_.collective) {
      case Collective::all_reduce:
        return group_.all_reduce(whole_, {.op = bench_.op, .algorithm = bench_.algorithm}).wait();
      case Collective::all_gather:
        return group_.all_gather(parts_, part_).wait();
      case Collective::reduce_scatter:
        return group_.reduce_scatter(part_, parts_, bench_.op).wait();
      case Collective::broadcast:
        return group_.broadcast(whole_, kBroadcastRoot).wait();
      default:
        throw UsageError(
            "bench: all_reduce, all_gather, broadcast and reduce_scatter can be measured");
    }
  }

  // The number of wrong elements on all ranks, after one more call in each round.
  std::int64_t wrong() {
    std::int64_t wrong = 0;
    for (int round = 0; round < kRounds; ++round) {
      rewrite(round);
      perform();
      wrong += wrong_after(round);
    }
    at::Tensor sum = at::full({1}, wrong, at::kLong);
    group_.all_reduce(sum).wait();
    return sum.item<std::int64_t>();
  }

  static constexpr int kRounds = 2;

 private:
  bool in_parts() const {
    return bench_.collective == Collective::all_gather ||
           bench_.collective == Collective::reduce_scatter;
  }
  at::Tensor make(std::int64_t elements) const {
    const auto options = at::TensorOptions().dtype(bench_.type);
    return bench_.from_group ? group_.empty({elements}, options) : at::empty({elements}, options);
  }
  Reduction reduction() const { return {bench_.op, bench_.type}; }
  at::Tensor& input() { return bench_.collective == Collective::all_gather ? part_ : whole_; }

  std::int64_t wrong_after(int round) const {
    const int ranks = group_.size();
    const std::int64_t part = elements_ / ranks;
    switch (bench_.collective) {
      case Collective::all_gather:
        return count_wrong(
            whole_,
            [&](std::int64_t i) {
              return known_element(reduction(), static_cast<int>(i / part), i % part, round);
            },
            0);
      case Collective::broadcast:
        return count_wrong(
            whole_,
            [&](std::int64_t i) { return known_element(reduction(), kBroadcastRoot, i, round); },
            0);
      default:
        // The ring rounds at each hop; a mean is rounded too.
        return count_wrong(
            in_parts() ? part_ : whole_,
            [&](std::int64_t i) {
              const std::int64_t position = in_parts() ? group_.rank() * part + i : i;
              return known_reduction(reduction(), ranks, position, round);
            },
            ranks);
    }
  }

  ProcessGroup& group_;
  CollectiveBench bench_;
  std::int64_t elements_ = 0;
  at::Tensor whole_;
  at::Tensor part_;
  std::vector<at::Tensor> parts_;
  std::array<at::Tensor, kRounds> originals_;
};

// All ranks must repeat the same number of times: rank 0 decides.
int agree(ProcessGroup& group, double repetitions, int least, int most) {
  return static_cast<int>(
      broadcast_object(std::clamp(repetitions, double(least), double(most)), 0, group));
}

// The median time of a few passes, on the slowest rank.
double triad_seconds(ProcessGroup& group, Triad& triad, Triad::Stores stores) {
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps; ++i) {
    seconds.push_back(seconds_of(group, [&] { triad.pass(stores); }));
  }
  return median(slowest_of_ranks(group, std::move(seconds)));
}

// BackendError unless the tensor, the contents to rewrite it from and the triad's arrays fit into
// memory. Ranks check when all have freed the memory of the last measurement, and none has
// allocated memory for the next.
void require_memory(ProcessGroup& group, std::int64_t bytes) {
  const std::int64_t needed = (1 + Run::kRounds + 1) * bytes;
  const int ranks = group.local_world_size();
  group.barrier().wait();
  const std::int64_t available = available_memory(ranks);
  if (needed > available) {
    throw BackendError(
        group.context("bench"),
        fmt::format("to measure {:.1f} MiB takes {:.1f} MiB on each of {} ranks of this machine, "
                    "where {:.1f} MiB are available to each",
                    static_cast<double>(bytes) / kMebibyte, static_cast<double>(needed) / kMebibyte,
                    ranks, static_cast<double>(available) / kMebibyte),
        "choose smaller --sizes or fewer --ranks");
  }
  group.barrier().wait();
}

}  // namespace

double least_traffic(Collective collective, int ranks, double bytes) {
  switch (collective) {
    case Collective::broadcast:
      return 2 * (ranks - 1) * bytes;
    case Collective::reduce_scatter:
      return (ranks + 1) * bytes;
    default:
      return 2 * ranks * bytes;
  }
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == Collective::broadcast) return 1;
  return collective == Collective::all_reduce ? 2 * others : others;
}

void check(const CollectiveBench& bench) {
  if (bench.algorithm != Algorithm::automatic && bench.collective != Collective::all_reduce) {
    throw UsageError("the ring is an algorithm of all-reduce; leave it out for other collectives");
  }
  if (bench.op != ReduceOp::sum && !reduces(bench.collective)) {
    throw UsageError(fmt::format("{} is not a reduction; remove --op {}", name(bench.collective),
                                 name(bench.op)));
  }
  const auto alone = make_self_group();
  Run(*alone, bench, 1).perform();
}

CollectiveRow measure(ProcessGroup& group, const CollectiveBench& bench, std::int64_t bytes) {
  require_memory(group, bytes);
  Run run(group, bench, bytes);
  Triad triad(run.bytes());

  std::vector<double> warm_up;
  for (int i = 0; i < kWarmUps; ++i) {
    warm_up.push_back(seconds_of(group, [&] {
      run.rewrite(0);
      run.perform();
    }));
  }
  const int repetitions = agree(group, kSecondsAMeasurement / median(warm_up), 3, 5000);
  const double plain = triad_seconds(group, triad, Triad::Stores::plain);
  const double past_cache = triad_seconds(group, triad, Triad::Stores::past_cache);
  const auto stores = past_cache < plain ? Triad::Stores::past_cache : Triad::Stores::plain;
  const int passes = agree(group, kShortestMeasurement / std::min(plain, past_cache), 1, 1000);

  std::vector<double> times;
  std::vector<double> triad_times;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int i = 0; i < repetitions; ++i) {
      run.rewrite(i % Run::kRounds);
      times.push_back(seconds_of(group, [&] { run.perform(); }));
    }
    for (int i = 0; i < repetitions; ++i) {
      const double seconds = seconds_of(group, [&] {
        for (int pass = 0; pass < passes; ++pass) triad.pass(stores);
      });
      triad_times.push_back(seconds / passes);
    }
  }
  times = slowest_of_ranks(group, std::move(times));
  triad_times = slowest_of_ranks(group, std::move(triad_times));

  const auto size = static_cast<double>(run.bytes());
  const double rate = group.size() * size / median(triad_times);
  const double bound = least_traffic(bench.collective, group.size(), size) / rate;
  CollectiveRow row;
  row.bytes = run.bytes();
  row.time_us_min = quantile(times, 0) * 1e6;
  row.time_us_median = median(times) * 1e6;
  row.algbw_gb_s = size / median(times) / 1e9;
  row.busbw_gb_s = row.algbw_gb_s * bus_factor(bench.collective, group.size());
  row.wrong = run.wrong();
  if (group.size() > 1) row.percent_of_bound = bound / median(times) * 100;
  return row;
}

}  // namespace lockstep::bench
