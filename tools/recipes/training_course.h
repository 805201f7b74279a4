// SPDX-License-Identifier: BSD-3-Clause
// How a training run went on each rank, for its report: loss, rates and memory over the steps, and
// what the time of the steps was spent on.
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
#include "tools/recipes/step_seen.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

// The steps since the previous point of their rank.
struct CoursePoint {
  // The last one, and where it is: 1.5 is in the middle of the second epoch.
  std::int64_t step = 0;
  double epoch = 0;
  // The mean over this rank's steps, and the last step's rate.
  double loss = 0;
  double learning_rate = 0;
  // Of this rank.
  double samples_per_second = 0;
  // In 10^6 bytes, as in TrainingRecords.
  std::optional<double> peak_mb = {};
};

struct RankCourse {
  std::vector<CoursePoint> points = {};
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  // Of the epochs, without what is done between them.
  double seconds = 0;
  // What they were spent on, by the names of the spans (docs/trace.md); what no span covers is
  // left out.
  std::map<std::string, double> seconds_in = {};
  // From the launches of the gradients' buckets to their arrivals, added up over the buckets, and
  // those seconds of them in which the rank waited.
  double seconds_in_flight = 0;
  double seconds_waited_in_flight = 0;
};

using CourseObserver =
    std::function<void(const TrainResult& result, const std::vector<RankCourse>& ranks)>;

// On every rank, used by one thread. Records spans if nobody else does.
class CourseRecorder {
 public:
  explicit CourseRecorder(ProcessGroup& group);

  void begin_epoch();
  void step(const StepSeen& seen);
  void end_epoch();

  // Collective. Every rank's course, in their order.
  std::vector<RankCourse> of_all_ranks() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Totals = std::map<std::string, double>;

  void add_point(const StepSeen& seen);
  static Totals totals();
  static ReductionTimes reductions();

  ProcessGroup& group_;
  std::optional<SpanRecorder> recorder_;
  RankCourse course_;
  Clock::time_point epoch_began_;
  Totals totals_before_;
  ReductionTimes reductions_before_;
  // Since the previous point; seconds_ up to since_, without what is done between epochs.
  Clock::time_point since_;
  double seconds_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t steps_ = 0;
  at::Tensor losses_;
  std::optional<Clock::time_point> peak_seen_;
  std::optional<double> peak_mb_;
};

}  // namespace lockstep
