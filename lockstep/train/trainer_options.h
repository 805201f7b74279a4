// SPDX-License-Identifier: BSD-3-Clause
// Public. The options of a Trainer. What fit() takes is in fit_options.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/share_buffers.h"
#include "lockstep/train/trainer_schedule.h"

namespace lockstep {

enum class TrainingMode {
  automatic,      // distributed in a group of several ranks, otherwise single
  single,         // the module itself
  data_parallel,  // DataParallel, in a group of one
  distributed,    // DistributedDataParallel
};

// What the loss function returns for its batch.
enum class LossReduction {
  mean,
  sum,  // only with .microbatches: the gradient is then that of the sum over the global batch
};

struct TrainerCheckpointOptions {
  // On the machine of rank 0. See CheckpointFolder.
  std::filesystem::path folder = {};
  // The number of steps between two saves, besides those at the end of each epoch. 0: only at the
  // end.
  std::int64_t every_steps = 0;
  // fit() resumes from the newest checkpoint, if there is one: with the learning rates of the
  // checkpoint, and with the schedule and lr_scale of this program. `log` gets a line if the
  // program's rates or schedule differ. Without this, a folder that has checkpoints is an error.
  bool resume = false;
  int keep_last = 2;
  // The number of checkpoints to keep for their evaluations; they may be among the newest. With at
  // least 1, the link `best` in the folder points to the best.
  int keep_best = 1;
  // Tensors to save and load with the model, such as the mean and standard deviation of a
  // standardization.
  std::vector<NamedTensor> tensors = {};
};

// The metric of an evaluation that decides what is best.
struct WatchedMetric {
  // Needed if evaluate() returns several.
  std::string name = {};
  // By default the highest is the best. fit() refuses that for a metric that decides something and
  // has "loss", "error" or "perplexity" in its name, unless `name` names it.
  bool lower_is_better = false;
};

// Ranks compare the options when fit() begins, together with the options of the optimizer, the
// scaler and the sampler: UsageError on every rank, which names the first difference. At the end of
// an epoch they also compare the learning rate, and the number that evaluate() returned if it
// decides something. Not compared: log, batches_per_line, tensorboard, progress, the checkpoints'
// folder, keep_last and keep_best, which only rank 0 uses; the devices of `distributed`, whose
// other options are compared when the model is wrapped; the order of batches without a sampler;
// what callbacks do; and the options of an optimizer other than libtorch's SGD, Adam, AdamW,
// RMSprop and Adagrad, except its learning rates.
struct TrainerOptions {
  TrainingMode mode = TrainingMode::automatic;
  std::int64_t epochs = 1;
  // The number of batches whose gradients make one step. Each contributes 1/N of it, even if the
  // last step of an epoch has fewer batches.
  std::int64_t accumulation_steps = 1;
  // If positive: the number of microbatches of which each step's global batch consists. The run is
  // then a function of the seed and the data: weights, buffers and the optimizer's state have the
  // same bits for any mode and for any number of ranks and replicas up to this one, also after a
  // resumption with another number (docs/determinism.md). The loader's batches are microbatches: a
  // step takes .microbatches times its batch size, the last one of an epoch what is left. Each goes
  // through forward and backward by itself, from the buffers at the start of the step; those that
  // microbatch 0 leaves stay. fit() needs a .sampler, which deals without padding, and a
  // MemoryLoader, a DataLoader or one of libtorch's loaders. While it runs, libtorch computes with
  // one thread and deterministic algorithms. In data_parallel, several threads call the loss
  // function at once. Communication hooks are not called. Gradients share memory that the next step
  // overwrites.
  std::int64_t microbatches = 0;
  // With .microbatches, if distributed in a group of several ranks: the number of microbatches that
  // a rank computes follows its speed, which changes no bit. Every 16 whole steps, the ranks
  // compare how long a microbatch takes on each, and move some if the slowest rank then ends at
  // least 5 % sooner; `log` gets a line that names it. Each rank keeps at least one. The loop over
  // the batches is then left and begun again, so batches that a loader has loaded in advance are
  // dropped (docs/determinism.md). Has no effect in a group of one.
  bool balance_load = false;
  LossReduction loss_reduction = LossReduction::mean;
  // The largest norm of all gradients together; they are clipped to it before each step.
  std::optional<double> max_grad_norm = {};
  // at::kBFloat16 or at::kHalf: the loss function runs within Autocast. float16 is also scaled.
  std::optional<at::ScalarType> amp = {};
  // Multiplies the learning rates of the optimizer, once, when the trainer gets it. The linear
  // scaling rule of Goyal et al. 2017 takes group->size() if the batch size of each rank stays,
  // with a warm-up in .lr_schedule. A OneCycleLR, whose rates are its own, is refused.
  double lr_scale = 1;
  // Sets the rates after each step. It starts from the rates of the optimizer, and keeps in
  // proportion what a callback or .reduce_lr_on_plateau makes of a rate.
  TrainerSchedule lr_schedule = {};
  // Reduces the rates if evaluations stop improving. Its patience counts epochs. `mode` follows
  // from .watch.
  std::optional<optim::ReduceLROnPlateauOptions> reduce_lr_on_plateau = {};
  // Averages the weights over the steps with this decay, from 0 to below 1, as an
  // ExponentialMovingAverage does; Trainer::ema() has the average. A step that float16 skips does
  // not count. Checkpoints have it, in tensors.safetensors: "ema.module." and the parameter's name.
  std::optional<double> ema_decay = {};
  // With ema_decay: the callback evaluate finds the averaged weights in the module, so that the
  // best evaluation is of these, and .restore_best and load_best() give the module the averages.
  bool evaluate_ema = true;
  // What .patience, .reduce_lr_on_plateau, .restore_best and the best checkpoint go by. The score
  // of a checkpoint is the metric, or its negative if lower is better.
  WatchedMetric watch = {};
  // The number of consecutive epochs without a better evaluation after which training ends. 0:
  // never. Needs the callback evaluate.
  std::int64_t patience = 0;
  // fit() ends with the weights and buffers of the best evaluation instead of the last ones: with
  // checkpoints, from the folder, which needs keep_best; otherwise a copy in memory. Needs the
  // callback evaluate.
  bool restore_best = false;
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
  // Each rank keeps the optimizer's state of its part of the parameters: see optimizers.h. With
  // .microbatches, each rank still gets the whole gradients, and updates its part from them. In an
  // elastic job of one machine whose ranks share memory, it includes
  // .distributed.one_copy_per_host; otherwise it needs .checkpoints there (docs/elastic.md).
  bool shard_optimizer = false;
  // Rank 0 writes events for TensorBoard into this folder: train/loss, the loss of its last batch,
  // and train/learning_rate every ten steps; after each epoch epoch/loss, and epoch/NAME for each
  // metric. BackendError on every rank if the folder cannot be made.
  std::optional<std::filesystem::path> tensorboard = {};
  // Rank 0 shows the progress bar of `lockstep train` on standard error instead of lines about
  // batches: on a terminal, in a process that no launcher started, and if the number of batches is
  // known (FitOptions::batches_per_epoch). A line of `log` removes the bar before, so print through
  // it.
  bool progress = false;
  // Gets lines on rank 0: about each epoch and each checkpoint, and within an epoch one every
  // `batches_per_line` batches. 0: no lines about batches.
  std::function<void(const std::string&)> log = {};
  std::int64_t batches_per_line = 100;
};

}  // namespace lockstep
