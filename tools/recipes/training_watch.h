// SPDX-License-Identifier: BSD-3-Clause
// Sees each step and epoch of a training run, passes them on to its observers, and adds them up for
// the result.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/trainer_options.h"
#include "tools/recipes/loss_curve.h"
#include "tools/recipes/recipe_trainer.h"
#include "tools/recipes/step_seen.h"
#include "tools/recipes/train_result.h"
#include "tools/recipes/training_course.h"
#include "tools/recipes/training_records.h"

namespace lockstep {

// What passes on what is seen; each may be missing on a rank.
struct TrainingObservers {
  TrainingRecords* records = nullptr;
  CourseRecorder* course = nullptr;
  StepObserver on_step = {};
};

// Arguments passed by reference must outlive it.
class TrainingWatch {
 public:
  // `result` describes the run, and takes what is seen of it.
  TrainingWatch(TrainResult& result, std::int64_t steps_per_epoch, const RecipeTrainer& model,
                ProcessGroup& group, TrainingObservers observers);

  void begin_epoch();
  void step(const StepSummary& step);
  // Before an evaluation, whose time is not the epoch's.
  void end_steps();
  // Collective.
  void end_epoch(const EpochSummary& summary);
  // Whether the net is trained, whatever follows.
  bool has_ended() const { return has_ended_; }
  // After the last epoch. `samples` are those of an epoch.
  void finish(std::int64_t samples);

 private:
  TrainResult& result_;
  std::int64_t steps_per_epoch_;
  const RecipeTrainer& model_;
  ProcessGroup& group_;
  TrainingObservers observers_;
  LossCurve curve_;
  bool steps_run_ = false;
  bool has_ended_ = false;
  std::vector<double> seconds_;  // of the epochs
  std::int64_t steps_ = 0;
  std::uint64_t moved_ = 0;  // bytes, during the steps
  std::uint64_t moved_before_epoch_ = 0;
  std::uint64_t moved_after_step_ = 0;
};

}  // namespace lockstep
