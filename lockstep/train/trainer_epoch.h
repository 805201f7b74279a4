// SPDX-License-Identifier: BSD-3-Clause
// What an epoch of a Trainer adds up, and where training stands in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/train/trainer_saves.h"

namespace lockstep {

class TrainerEpoch {
 public:
  // Begins now. Goes on after the batches and samples of the progress, and counts there. Keeps
  // references; the sampler may be null.
  TrainerEpoch(TrainerProgress& progress, const TrainerOptions& options,
               const EpochSampler* sampler, ProcessGroup& group);

  // Of a batch that begins, with as many samples on each rank; -1 if it does not say.
  void count_batch(std::int64_t samples);
  // Those counted here.
  std::int64_t batches() const { return batches_; }
  // Adds the mean loss of a batch of so many samples.
  void add_loss(const at::Tensor& loss, std::int64_t samples);
  // Of a step that has ended. The summary lacks the loss and the learning rate.
  StepSummary count_step(bool skipped);

  // Whether all samples have been counted; false without a sampler.
  bool has_all_samples() const;
  // "epoch 2/5"
  std::string label() const;
  // "epoch 2/5, step 100/938"; without a sampler, the number of batches is not known.
  std::string where() const;

  // Collective. The summary lacks the evaluation. UsageError on every rank unless the learning rate
  // is the same on all.
  EpochSummary finish(double learning_rate);

 private:
  std::int64_t samples_of_all_ranks() const;

  TrainerProgress& progress_;
  const TrainerOptions& options_;
  const EpochSampler* sampler_;
  ProcessGroup& group_;
  EpochSummary summary_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t batches_ = 0;
  // Of this rank since the last step, -1 if unknown; and of all ranks in a full batch.
  std::int64_t samples_of_step_ = 0;
  std::int64_t samples_of_batch_ = 0;
  at::Tensor losses_;  // their sum, each times its weight, on the device
  double weights_ = 0;
};

}  // namespace lockstep
