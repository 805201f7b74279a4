// SPDX-License-Identifier: BSD-3-Clause
// The loop over the epochs, the same for every mode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/progress.h"
#include "tools/recipes/net_in_mode.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/step_seen.h"
#include "tools/recipes/train.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

// Arguments passed by reference must outlive the loop.
class TrainingLoop {
 public:
  TrainingLoop(const Recipe& recipe, MemoryLoader loader, std::int64_t steps_per_epoch,
               const LearningRateSchedule& schedule, torch::optim::Optimizer& optimizer,
               NetInMode& net, std::optional<Amp> amp, ProcessGroup& group, Progress::Log log);

  // Call it before the first epoch. The observer of rank 0 gets each step.
  void observe(StepObserver observer) { observer_ = std::move(observer); }

  struct Epoch {
    double loss;
    double seconds;
    // Within the epoch: the last one is at 1.
    std::vector<LossPoint> losses = {};
  };

  // Collective. label begins progress lines.
  Epoch run_epoch(const std::string& label);

  // NetInMode::bytes_moved during the steps of all epochs.
  std::uint64_t bytes_moved() const { return bytes_moved_; }

 private:
  at::Tensor run_step(const MemoryLoader::Batch& batch);
  at::Tensor loss_of(const MemoryLoader::Batch& batch);
  // Passes the last step on to the observer.
  void report(std::int64_t step_of_epoch, const at::Tensor& loss, std::int64_t own_samples);
  void set_learning_rate(double rate);
  Epoch agree(const at::Tensor& of_rank, double seconds);

  const Recipe& recipe_;
  MemoryLoader loader_;
  std::int64_t steps_per_epoch_;
  LearningRateSchedule schedule_;
  torch::optim::Optimizer& optimizer_;
  NetInMode& net_;
  std::optional<Amp> amp_;
  GradScaler scaler_;
  ProcessGroup& group_;
  Progress progress_;
  StepObserver observer_;
  std::int64_t step_ = 0;  // over all epochs
  std::uint64_t bytes_moved_ = 0;
};

}  // namespace lockstep
