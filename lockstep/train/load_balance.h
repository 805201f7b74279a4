// SPDX-License-Identifier: BSD-3-Clause
// How many microbatches each rank computes, by the time that it takes for one: what a rank measures
// of its steps, and what all ranks decide from the measurements.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/tree_sum.h"

namespace lockstep {

// What a rank measures, in seconds: means over its last steps, without the extremes.
struct RankLoad {
  double computing = 0;  // forward and backward of a microbatch
  double data = 0;       // the wait for a microbatch's samples
  double exchange = 0;   // from the end of its own microbatches until it has a step's gradients

  // The time that a microbatch takes on this rank.
  double seconds() const { return computing + data; }
};

// Returns the runs whose slowest rank ends first: of `microbatches` microbatches, rank r computes
// one in seconds[r] seconds. Each rank gets at least one; of equal ranks, the lower gets more.
// There must be at least as many microbatches as ranks, and the times must be positive.
std::vector<LeafRange> balanced_runs(std::span<const double> seconds, std::int64_t microbatches);

// Returns the runs that are better than the present ones: the slowest rank ends at least 5 % sooner
// with them. nullopt if there are none, or if a rank has no measurement. `loads`: one for each run.
std::optional<std::vector<LeafRange>> better_runs(std::span<const LeafRange> runs,
                                                  std::span<const RankLoad> loads);

// Returns a line that names the slowest of several ranks, what it does with its time, and the
// shares: "rank 2 computes for 20.1 ms per microbatch and waits 0.1 ms for its data, ...".
std::string load_text(std::span<const LeafRange> runs, std::span<const RankLoad> loads);

// Measures one rank's steps. Used by one thread.
class LoadMeter {
 public:
  // What the rank does; only its own work and waits are measured.
  enum class Activity { other, computing, data, exchange };

  // From now on, the rank does this.
  void begin(Activity activity);
  // Counts the computing and the waits for data since the last call as those of `microbatches`
  // microbatches.
  void end_microbatches(std::size_t microbatches);
  // Counts the exchange since the last call as that of a step.
  void end_exchange();
  // Discards what is not counted yet.
  void forget_step();

  // Returns the means over the steps since the last clear(); 0 without any.
  RankLoad load() const;
  // Whether end_microbatches() has been called often enough for a decision.
  bool is_due() const { return computing_.size() >= kSteps; }
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kSteps = 16;

  double take(Activity activity);

  Activity activity_ = Activity::other;
  Clock::time_point since_;
  std::array<double, 4> seconds_{};  // by activity
  std::vector<double> computing_, data_, exchange_;
};

}  // namespace lockstep
