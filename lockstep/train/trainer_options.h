// SPDX-License-Identifier: BSD-3-Clause
// Public. The options and callbacks of a Trainer, and its summaries of steps and epochs.
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
  // On the machine of rank 0. See CheckpointFolder.
  std::filesystem::path folder = {};
  // The number of steps between two saves, besides those at the end of each epoch. 0: only at the
  // end.
  std::int64_t every_steps = 0;
  // fit() resumes from the newest checkpoint, if there is one: with the initial learning rates of
  // the checkpoint, and with the schedule of this program. `log` gets a line if the program's rates
  // or schedule differ. Without this, a folder that has checkpoints is an error.
  bool resume = false;
  int keep_last = 2;
  // The number of checkpoints to keep for their evaluations; they may be among the newest.
  int keep_best = 1;
  // Tensors to save and load with the model, such as the mean and standard deviation of a
  // standardization.
  std::vector<NamedTensor> tensors = {};
};

// Ranks compare the options when fit() begins, together with the options of the optimizer, the
// scaler and the sampler: UsageError on every rank, which names the first difference. At the end of
// an epoch they also compare the learning rate, and the number that evaluate() returned if it
// decides something. Not compared: log, batches_per_line, the checkpoints' folder, keep_last and
// keep_best, which only rank 0 uses; the devices of `distributed`, whose other options are compared
// when the model is wrapped; the order of batches without a sampler; what callbacks do; and the
// options of an optimizer other than libtorch's SGD, Adam, AdamW, RMSprop and Adagrad, except its
// learning rates.
struct TrainerOptions {
  TrainingMode mode = TrainingMode::automatic;
  std::int64_t epochs = 1;
  // The number of batches whose gradients make one step. Each contributes 1/N of it, even if the
  // last step of an epoch has fewer batches.
  std::int64_t accumulation_steps = 1;
  // The largest norm of all gradients together; they are clipped to it before each step.
  std::optional<double> max_grad_norm = {};
  // at::kBFloat16 or at::kHalf: the loss function runs within Autocast. float16 is also scaled.
  std::optional<at::ScalarType> amp = {};
  // Multiplies the optimizer's learning rates, so leave its base at 1. Unless it is flat, it sets
  // them before each step.
  LearningRateSchedule schedule = {};
  // The number of consecutive epochs without a better evaluation after which training ends. 0:
  // never. Needs the callback evaluate.
  std::int64_t patience = 0;
  // If distributed: what the module's buffers, such as the statistics of a BatchNorm, become on
  // every rank before the callback evaluate. The checkpoint of the epoch has them, and accuracy()
  // and evaluate() find them equal.
  EvaluationBuffers evaluation_buffers = EvaluationBuffers::of_rank_0;
  // Throws NonFiniteGradient before a step whose gradients have infinite or NaN elements.
  bool check_finite = false;
  // If distributed: the number of steps after which the ranks compare parameters, buffers and
  // gradients, bit for bit, and throw OutOfSync if they differ. 0: never.
  std::int64_t check_in_sync = 0;
  // If distributed in a group of several ranks: normalizes over the batches of all ranks, as
  // convert_sync_batchnorm does, in a group of its own (group->split), so that normalization does
  // not queue behind gradients. Has no effect in the other modes.
  bool sync_batchnorm = false;
  // The options of the wrappers, for the modes of the same names.
  DataParallelOptions data_parallel = {};
  DistributedDataParallelOptions distributed = {};
  std::optional<TrainerCheckpointOptions> checkpoints = {};
  // Each rank keeps the optimizer's state of its part of the parameters: see optimizers.h.
  bool shard_optimizer = false;
  // Gets lines on rank 0: about each epoch and each checkpoint, and one every `batches_per_line`
  // batches. 0: no lines about batches.
  std::function<void(const std::string&)> log = {};
  std::int64_t batches_per_line = 100;
};

struct EpochSummary {
  std::int64_t epoch = 0;    // counted from 0
  std::int64_t steps = 0;    // optimizer steps in this epoch
  std::int64_t skipped = 0;  // steps whose gradients overflowed in float16
  // The mean over the samples of all ranks, or over their batches if the numbers of samples are
  // unknown.
  double loss = 0;
  double seconds = 0;  // the time of the slowest rank, without evaluation
  std::optional<double> evaluation = {};
};

struct StepSummary {
  std::int64_t epoch = 0;  // counted from 0
  std::int64_t step = 0;   // optimizer steps over all epochs, including this one
  // The mean over the last batch of this rank, on its device: reading it waits for a GPU.
  at::Tensor loss;
  double learning_rate = 0;  // the rate of the first parameter group
  // The samples of this rank in the step, and of all ranks in this epoch so far; -1 if unknown.
  std::int64_t samples = 0;
  std::int64_t samples_of_epoch = 0;
};

// Functions are called on every rank.
struct FitOptions {
  // The sampler that the loader was made with. fit() sets its epoch, and can resume in the middle
  // of an epoch with any number of ranks. Without it, a resumed fit() skips batches of the range,
  // which must not depend on random numbers, and needs the former number of ranks. It must outlive
  // fit().
  EpochSampler* sampler = nullptr;
  // fit() with .resume calls this before the first epoch with the number of steps in the
  // checkpoint; 0 without a checkpoint. Training repeats the later steps of a killed run, so the
  // program should drop its records of them, for example by purge(steps + 1) of a
  // TensorBoardWriter.
  std::function<void(std::int64_t steps)> resumed = {};
  std::function<void(std::int64_t epoch)> begin_epoch = {};
  std::function<void(const StepSummary&)> after_step = {};
  // fit() calls this after each epoch. Returns a number that is the same on every rank, as
  // accuracy() does; higher is better.
  std::function<double()> evaluate = {};
  // fit() calls this before it saves the checkpoint of the epoch, which includes the changes made
  // here, such as learning rates.
  std::function<void(const EpochSummary&)> end_epoch = {};
};

}  // namespace lockstep
