// SPDX-License-Identifier: BSD-3-Clause
// The options and callbacks of a Trainer, and the summaries that it returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lockstep/data/epoch_sampler.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/share_buffers.h"

namespace lockstep {

enum class TrainingMode {
  automatic,      // distributed in a group of several ranks, otherwise single
  single,         // the module itself
  data_parallel,  // DataParallel, in a group of one
  distributed,    // DistributedDataParallel
};

struct TrainerCheckpointOptions {
  // On rank 0's machine. See CheckpointFolder.
  std::filesystem::path folder = {};
  // Saves every so many steps, besides the end of each epoch. 0: only there.
  std::int64_t every_steps = 0;
  // fit() goes on from the newest checkpoint, if there is one: with its initial learning rates, and
  // with this program's schedule. `log` gets a line if the program's rates or schedule differ from
  // the checkpoint's. Without this, a folder that has checkpoints is an error.
  bool resume = false;
  int keep_last = 2;
  // And those with the best evaluations, which may be among the newest.
  int keep_best = 1;
  // Saved and loaded with the model, such as the mean and standard deviation of a standardization.
  std::vector<NamedTensor> tensors = {};
};

// Ranks compare them when fit() begins, with the optimizer's options, the scaler's and the
// sampler's: UsageError on every rank, which names the first difference. At the end of an epoch
// they compare the learning rate too, and a number that evaluate() returned if it decides
// something. Not compared: log, batches_per_line, the checkpoints' folder, keep_last and keep_best,
// which are rank 0's; the devices of `distributed`, whose other options are compared when the model
// is wrapped; the order of batches without a sampler; what callbacks do; and the options of an
// optimizer that is none of libtorch's SGD, Adam, AdamW, RMSprop and Adagrad, except its learning
// rates.
struct TrainerOptions {
  TrainingMode mode = TrainingMode::automatic;
  std::int64_t epochs = 1;
  // The batches whose gradients make one step. Each counts 1/N of it, also in a last step of an
  // epoch that has fewer.
  std::int64_t accumulation_steps = 1;
  // Clips the norm of all gradients together before each step.
  std::optional<double> max_grad_norm = {};
  // at::kBFloat16 or at::kHalf: the loss function runs within Autocast. float16 is also scaled.
  std::optional<at::ScalarType> amp = {};
  // Multiplies the optimizer's learning rates, so leave its base at 1. Unless it is flat, it sets
  // them before each step.
  LearningRateSchedule schedule = {};
  // Ends training after this many epochs in a row whose evaluation was not better than the best
  // before. 0: never. Needs the callback evaluate.
  std::int64_t patience = 0;
  // If distributed: what the module's buffers, such as a BatchNorm's statistics, become on every
  // rank before the callback evaluate. The checkpoint of the epoch has them. accuracy() and
  // evaluate() then find them equal.
  EvaluationBuffers evaluation_buffers = EvaluationBuffers::of_rank_0;
  // Throws NonFiniteGradient before a step whose gradients have infinite or NaN elements.
  bool check_finite = false;
  // If distributed: throws OutOfSync unless all ranks have the same parameters, buffers and
  // gradients, bit for bit, after every so many steps. 0: never.
  std::int64_t check_in_sync = 0;
  // If distributed in a group of several ranks: batch normalization over the batches of all ranks,
  // as by convert_sync_batchnorm, in a group of its own (group->split), so that it need not queue
  // behind gradients. The other modes are not changed by it.
  bool sync_batchnorm = false;
  // For data_parallel and distributed.
  DataParallelOptions data_parallel = {};
  DistributedDataParallelOptions distributed = {};
  std::optional<TrainerCheckpointOptions> checkpoints = {};
  // Each rank keeps the state of its part of the parameters: see optimizers.h.
  bool shard_optimizer = false;
  // Gets lines on rank 0: about each epoch and each checkpoint, and every so many batches. 0: none
  // of these.
  std::function<void(const std::string&)> log = {};
  std::int64_t batches_per_line = 100;
};

struct EpochSummary {
  std::int64_t epoch = 0;    // from 0
  std::int64_t steps = 0;    // of the optimizer
  std::int64_t skipped = 0;  // steps whose gradients overflowed in float16
  // The mean over the samples of all ranks; over the batches, if these do not say how many they
  // have.
  double loss = 0;
  double seconds = 0;  // of the slowest rank, without evaluation
  std::optional<double> evaluation = {};
};

struct StepSummary {
  std::int64_t epoch = 0;    // from 0
  std::int64_t step = 0;     // of the optimizer, over all epochs, from 1
  at::Tensor loss;           // of this rank's last batch, on its device: reading it waits for a GPU
  double learning_rate = 0;  // of the first parameter group
  // This rank's in the step, and all ranks' in this epoch so far; -1 if batches do not say.
  std::int64_t samples = 0;
  std::int64_t samples_of_epoch = 0;
};

// Functions are called on every rank.
struct FitOptions {
  // The sampler that the loader was made with. fit() sets its epoch, and can resume in the middle
  // of an epoch with any number of ranks. Without it, a resumed fit() skips batches of the range,
  // which must not depend on random numbers, and needs as many ranks as before. It must outlive
  // fit().
  EpochSampler* sampler = nullptr;
  // With .resume, before the first epoch: training goes on from the checkpoint of so many steps; 0
  // if there is none. Later steps of a killed run are done again, so that a program forgets what it
  // recorded of them, as by purge(steps + 1) of a TensorBoardWriter.
  std::function<void(std::int64_t steps)> resumed = {};
  std::function<void(std::int64_t epoch)> begin_epoch = {};
  std::function<void(const StepSummary&)> after_step = {};
  // After each epoch: a number that is the same on every rank, as accuracy() returns; higher is
  // better.
  std::function<double()> evaluate = {};
  // Before the checkpoint of the epoch, which has what this changes, such as learning rates.
  std::function<void(const EpochSummary&)> end_epoch = {};
};

}  // namespace lockstep
