// SPDX-License-Identifier: BSD-3-Clause
// The state of a training run as one line at the bottom of a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/train/fit_options.h"

namespace lockstep {

// The steps of a run. A resumed run counts them in its own batches, whatever the size of the
// batches before the checkpoint.
struct RunSteps {
  std::int64_t epochs = 1;
  std::int64_t per_epoch = 1;
  std::int64_t global_batch_size = 1;
  int ranks = 1;

  // The number of a step, from 1: in its epoch, and in the run.
  std::int64_t in_epoch(const StepSummary& step) const {
    return (step.samples_of_epoch + global_batch_size - 1) / global_batch_size;
  }
  std::int64_t in_run(const StepSummary& step) const {
    return step.epoch * per_epoch + in_epoch(step);
  }
  std::int64_t all() const { return epochs * per_epoch; }
};

struct ProgressState {
  std::int64_t epoch = 1;
  std::int64_t epochs = 1;
  std::int64_t step_of_epoch = 1;
  std::int64_t steps_per_epoch = 1;
  double loss = 0;
  double samples_per_second = 0;
  double seconds_left = 0;
};

// Returns a line of printable characters, shorter than `columns`, since a terminal may wrap a full
// line: "epoch 2/5 [===>    ] 469/938, loss 0.4312, 51234 samples/s, 1:05
// left". On a narrow terminal, parts are left out. Green if `coloured`.
std::string progress_bar(const ProgressState& state, int columns, bool coloured);

// Returns a line about counted work: "all-reduce [===>   ] 3/11, 0:05 left". Without the time while
// it is unknown.
std::string count_bar(const std::string& what, std::int64_t done, std::int64_t all,
                      std::optional<double> seconds_left, int columns, bool coloured);

// Text that passes through a store. progress_from_text() returns nullopt for any other text.
std::string to_text(const ProgressState& state);
std::optional<ProgressState> progress_from_text(const std::string& text);

// Turns the steps of a run into states, ten a second.
class ProgressMeter {
 public:
  // nullopt if the previous state is too recent.
  std::optional<ProgressState> step(const RunSteps& run, const StepSummary& step);

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
  std::int64_t first_step_ = 1;  // later if the run was resumed
  std::optional<Clock::time_point> last_;
  std::int64_t samples_ = 0;  // counted since last_
  double rate_ = 0;
};

}  // namespace lockstep
