// SPDX-License-Identifier: BSD-3-Clause
// The course of a training run on each rank, for its report: loss, rates and memory over the steps,
// and how the time of the steps was spent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/trace_span.h"
#include "tools/recipes/observation.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

// The steps of a rank since its previous point.
struct CoursePoint {
  // The last of the steps, and its position in epochs: 1.5 is halfway through the second.
  std::int64_t step = 0;
  double epoch = 0;
  // The mean loss over the steps, and the rate of the last one.
  double loss = 0;
  double learning_rate = 0;
  // The samples of this rank.
  double samples_per_second = 0;
  // In 10^6 bytes; nullopt if unknown.
  std::optional<double> peak_mb = {};
};

// The test set after an epoch.
struct EvaluationPoint {
  // Counted from 1.
  std::int64_t epoch = 0;
  // The mean loss over the samples, and the share of right predictions, from 0 to 1.
  double loss = 0;
  double accuracy = 0;
};

struct RankCourse {
  std::vector<CoursePoint> points = {};
  // The same on every rank; empty without a test set.
  std::vector<EvaluationPoint> evaluations = {};
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  // The time of the epochs, without the time between them.
  double seconds = 0;
  // The parts of that time by the names of the spans (docs/trace.md), without time outside spans.
  std::map<std::string, double> seconds_in = {};
  // The time from the launch of a bucket of gradients to its arrival, added up over the buckets,
  // and the part of it in which the rank waited.
  double seconds_in_flight = 0;
  double seconds_waited_in_flight = 0;
};

using CourseObserver =
    std::function<void(const TrainResult& result, const std::vector<RankCourse>& ranks)>;

// Every rank has one, used by one thread. Records spans unless a recorder is active.
class CourseRecorder {
 public:
  explicit CourseRecorder(ProcessGroup& group);

  void begin_epoch();
  void step(const RunSteps& run, const StepSummary& step);
  void end_epoch();
  void evaluated(const EvaluationPoint& point) { course_.evaluations.push_back(point); }

  // Collective. Returns the courses of all ranks, in their order.
  std::vector<RankCourse> of_all_ranks() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Totals = std::map<std::string, double>;

  void add_point(const RunSteps& run, const StepSummary& step);
  static Totals totals();
  static ReductionTimes reductions();

  ProcessGroup& group_;
  std::optional<SpanRecorder> recorder_;
  RankCourse course_;
  Clock::time_point epoch_began_;
  Totals totals_before_;
  ReductionTimes reductions_before_;
  // Counted since the previous point; seconds_ up to since_, without the time between epochs.
  Clock::time_point since_;
  double seconds_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t steps_ = 0;
  at::Tensor losses_;
  PeakGauge peak_;
};

}  // namespace lockstep
