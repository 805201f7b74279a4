// SPDX-License-Identifier: BSD-3-Clause
// Observes each step and epoch of a training run, passes them on, and adds them up for the result.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/trainer_options.h"
#include "tools/recipes/metrics_writer.h"
#include "tools/recipes/observation.h"
#include "tools/recipes/recipe_trainer.h"
#include "tools/recipes/train_result.h"
#include "tools/recipes/training_course.h"

namespace lockstep {

// The course of the loss within an epoch: means over a few sections.
class LossCurve {
 public:
  explicit LossCurve(std::int64_t steps_per_epoch) : steps_per_epoch_(steps_per_epoch) {}

  // `step` counts from 1 in the epoch. `loss` is the mean over `samples` samples; it stays on its
  // device.
  void add(std::int64_t step, const at::Tensor& loss, std::int64_t samples);

  // Collective unless `group` is null, which says that each rank has had the losses of all. Returns
  // the points of the steps since the last call; the end of the epoch is at 1.
  std::vector<LossPoint> finish(ProcessGroup* group);

 private:
  struct Section {
    std::int64_t number;
    at::Tensor losses;  // the sum over the samples
    double samples;
  };

  std::int64_t steps_per_epoch_;
  std::vector<Section> sections_;
};

// Where steps and epochs are passed on to; a rank may lack each of them.
struct RunSinks {
  MetricsWriter* metrics = nullptr;
  CourseRecorder* course = nullptr;
  StepObserver on_step = {};
};

// Arguments passed by reference must outlive it.
class RunObserver {
 public:
  // `result` describes the run, and gets what is observed.
  RunObserver(TrainResult& result, std::int64_t steps_per_epoch, const RecipeTrainer& model,
              RunSinks sinks);

  void begin_epoch();
  void step(const StepSummary& step);
  // Call it before an evaluation, whose time is not part of the epoch.
  void end_steps();
  // Collective.
  void end_epoch(const EpochSummary& summary);
  // Whether the last epoch has been trained, even if an error followed.
  bool has_ended() const { return has_ended_; }
  // Call it after the last epoch. `samples`: the samples of an epoch.
  void finish(std::int64_t samples);

 private:
  TrainResult& result_;
  RunSteps run_;
  const RecipeTrainer& model_;
  RunSinks sinks_;
  LossCurve curve_;
  bool steps_run_ = false;
  bool has_ended_ = false;
  std::vector<double> seconds_;  // one for each epoch
  std::int64_t steps_ = 0;
  std::int64_t samples_of_epoch_ = 0;  // up to the last step
  std::uint64_t moved_ = 0;            // bytes moved during the steps
  std::uint64_t moved_before_epoch_ = 0;
  std::uint64_t moved_after_step_ = 0;
};

}  // namespace lockstep
