// SPDX-License-Identifier: BSD-3-Clause
// What a Trainer does whatever the type of its module: epochs of steps, their evaluation and
// checkpoints.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/trainer_base.h"
#include "lockstep/train/trainer_epoch.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/train/trainer_saves.h"
#include "lockstep/train/trainer_step.h"

namespace lockstep {

class TrainerLoop {
 public:
  using RunBatches = std::function<void(const detail::TrainOn&)>;

  TrainerLoop(std::shared_ptr<ProcessGroup> group, TrainerOptions options);

  ProcessGroup& group() const { return *group_; }
  const TrainerOptions& options() const { return options_; }
  TrainerStep& step() { return step_; }

  // Trainer::fit().
  std::vector<EpochSummary> run(const RunBatches& run_batches, const FitOptions& fit);

 private:
  bool open_checkpoints(EpochSampler* sampler);
  void begin_epoch(bool resumed, const FitOptions& fit);
  EpochSummary run_epoch(const RunBatches& run_batches, const FitOptions& fit, bool resumed);
  double evaluated(const FitOptions& fit);
  void train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch, const FitOptions& fit);
  void finish_step(const at::Tensor& loss, bool is_last, TrainerEpoch& epoch,
                   const FitOptions& fit);
  void require_size(const detail::TrainerBatch& batch, const EpochSampler* sampler) const;
  void save(const std::optional<double>& score, const EpochSampler* sampler);
  void note_evaluation(const std::optional<double>& evaluation);
  bool has_no_patience_left() const;

  std::shared_ptr<ProcessGroup> group_;
  TrainerOptions options_;
  TrainerStep step_;
  TrainerProgress progress_;
  std::optional<Progress> lines_;
  std::unique_ptr<TrainerSaves> saves_;  // from the first run() on, if there are checkpoints
};

}  // namespace lockstep
