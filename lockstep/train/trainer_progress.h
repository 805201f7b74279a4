// SPDX-License-Identifier: BSD-3-Clause
// The progress of a Trainer: counted over an epoch, saved in checkpoints and loaded from them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/rendezvous/reported_steps.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// What the summary of an epoch is made of. A checkpoint does not have it: after a resumption, the
// summary covers the rest of the epoch.
struct EpochSums {
  at::Tensor losses =
      {};  // the sum of the weighted losses, on the device; undefined if there is none
  double weights = 0;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  // When this process began with the epoch.
  std::optional<std::chrono::steady_clock::time_point> start = {};
};

// How far training has come; the same on every rank.
struct TrainerProgress {
  std::int64_t steps = 0;  // over all epochs
  std::int64_t epoch = 0;
  // Counts of this epoch: batches of each rank, samples of all ranks together.
  std::int64_t batches = 0;
  std::int64_t samples = 0;
  // The best evaluation, and the epoch and the step of the first that was as good. Empty before
  // there is one; the last two also after a checkpoint of Lockstep 0.1.
  std::optional<double> best = {};
  std::optional<std::int64_t> best_epoch = {};
  std::optional<std::int64_t> best_step = {};
  std::int64_t epochs_since_best = 0;
  // What the evaluation is, such as "the highest accuracy". Empty if unknown.
  std::string watched = {};
  EpochSums sums = {};
  // The summary of the epoch before `epoch` while the callbacks after it run and its checkpoint is
  // taken. Checkpoints have neither of these.
  std::optional<EpochSummary> ended = {};
  // Whether the callbacks after that epoch have ended, so that only its checkpoint is left.
  bool lacks_checkpoint_only = false;
  struct Counts {
    std::int64_t steps = -1;
    std::int64_t batches = 0;
    std::int64_t samples = 0;
    at::Tensor losses = {};
    double weights = 0;
  };
  Counts before_step = {};

  // Takes note of the evaluation of `epoch`, after `steps`. Returns whether it is better than every
  // earlier one.
  bool note_evaluation(double evaluation, bool lower_is_better);
  void forget_best();
  // Says why training ends before its last epoch, or that nothing was left to train. Empty if
  // neither is so.
  std::string end_text(const TrainerOptions& options, bool has_trained) const;

  // Call it when a step in microbatches begins, before its samples are counted.
  void begin_step() { before_step = {steps, batches, samples, sums.losses, sums.weights}; }
  // Takes back the samples and losses of a step that has begun and is not counted in `steps`.
  void forget_unfinished_step();
};

// Returns the progress as a checkpoint keeps it. `sampler` may be null.
CheckpointPosition position_of(const TrainerProgress& progress, const EpochSampler* sampler,
                               const ProcessGroup& group);
// Returns the progress at the position, and moves the sampler there; it may be null.
// CheckpointError if it is null and another number of ranks came to the position in the middle of
// an epoch.
TrainerProgress progress_at(const CheckpointPosition& position, EpochSampler* sampler,
                            const ProcessGroup& group);

// The batches, samples, steps and losses of an epoch.
class TrainerEpoch {
 public:
  // Starts timing unless `progress` says when the epoch began. Continues counting from `progress`
  // and updates it. Keeps references; `sampler` may be null.
  TrainerEpoch(TrainerProgress& progress, const TrainerOptions& options,
               const EpochSampler* sampler, ProcessGroup& group);

  // Counts a batch, or a global batch of microbatches. `samples`: this rank's samples, or negative
  // if unknown; `of_all_ranks`: all samples.
  void count_batch(std::int64_t samples, std::int64_t of_all_ranks);
  // The number of batches counted by this object.
  std::int64_t batches() const { return batches_; }
  // Adds the mean loss of `samples` samples.
  void add_loss(const at::Tensor& loss, std::int64_t samples);
  // Counts a step, and reports it to the launcher. The summary lacks the loss and the learning
  // rate.
  StepSummary count_step(bool skipped);

  // Whether all samples have been counted; false without a sampler.
  bool has_all_samples() const;
  // "epoch 2/5"
  std::string label() const;
  // "epoch 2/5, step 100/938"; without a sampler, the number of batches is not known.
  std::string where() const;

  // Collective. The summary lacks the evaluation. UsageError on every rank if the learning rates of
  // the ranks differ.
  EpochSummary finish(double learning_rate);

 private:
  std::int64_t samples_of_all_ranks() const;

  TrainerProgress& progress_;
  const TrainerOptions& options_;
  const EpochSampler* sampler_;
  ProcessGroup& group_;
  StepReports reports_;
  std::int64_t batches_ = 0;
  std::int64_t samples_of_step_ = 0;   // this rank's samples since the last step; -1 if unknown
  std::int64_t samples_of_batch_ = 0;  // the samples of all ranks in a full batch
};

// The checkpoints of a Trainer.
class TrainerSaves {
 public:
  // Collective. The group and the objects to which `contents` points must outlive this object.
  // `watched`: what evaluations are now (TrainerProgress::watched); those that were something else
  // do not count as scores.
  TrainerSaves(const TrainerCheckpointOptions& options, CheckpointContents contents,
               std::string watched, ProcessGroup& group,
               std::function<void(const std::string&)> log);

  // UsageError if the folder has checkpoints of an earlier run.
  void require_new_folder() const;
  // The checkpoints in the folder are of this run, whose ranks have changed.
  void continue_run() { folder_.continue_run(); }

  // Collective. Returns where to resume, or nullopt to start from scratch. Throws what
  // progress_at() throws.
  std::optional<TrainerProgress> load(EpochSampler* sampler);
  // Collective. `score`: the evaluation of the epoch that has just ended, if there was one.
  void save(const TrainerProgress& progress, std::optional<double> score,
            const EpochSampler* sampler);
  // Collective. Blocks until the last checkpoint is written; BackendError if that failed.
  void wait() { folder_.wait(); }
  // Collective. Gives the module and the program's tensors their values at the best evaluation.
  // Returns false if no checkpoint has a score.
  bool load_best();

 private:
  CheckpointContents contents_;
  ProcessGroup& group_;
  std::string path_;
  CheckpointFolder folder_;
};

}  // namespace lockstep
