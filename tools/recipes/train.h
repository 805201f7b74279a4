// SPDX-License-Identifier: BSD-3-Clause
// Trains a recipe: one loop for one process and for many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/number.h"
#include "lockstep/train/trainer_options.h"
#include "tools/recipes/curriculum.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/step_seen.h"
#include "tools/recipes/train_result.h"
#include "tools/recipes/training_course.h"

namespace lockstep {

// Small enough that the number of all steps of a training run fits an std::int64_t.
constexpr Range<std::int64_t> kEpochs{1, 1'000'000'000};
// In steps, up to the most steps that a training run may have.
constexpr Range<std::int64_t> kStepIntervals{1, std::numeric_limits<std::int64_t>::max()};
// Rates that still fit a float after scaling, and after Adam's division.
constexpr Range<double> kLearningRates{1e-30, 1e30};
constexpr Range<double> kLearningRateScales{1, 1e6};
constexpr Range<std::int64_t> kSeeds{std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()};

enum class TrainMode { single, dp, ddp };

// The half precision that Autocast computes layers in.
enum class Amp { bf16, fp16 };

std::string_view name(Amp amp);
// UsageError, listing both, if there is none of this name.
Amp find_amp(const std::string& name);

std::string_view name(TrainMode mode);
// UsageError, listing the modes, if there is none of this name.
TrainMode find_mode(const std::string& name);

// An empty option means the recipe's value.
struct TrainOptions {
  std::optional<std::int64_t> epochs = {};
  // See resolve_batch_sizes.
  std::optional<std::int64_t> batch_size = {};
  std::optional<std::int64_t> global_batch_size = {};
  std::optional<double> learning_rate = {};
  // See LearningRateSchedule.
  double learning_rate_scale = 1;
  // Where recipes that read a data set find it: a folder of images, by default Debian's
  // Fashion-MNIST, or a text file or a folder of them, by default Debian's licences.
  std::optional<std::filesystem::path> data_folder = {};
  std::int64_t seed = 0;
  // For recipes that classify images: visits them from easy to hard.
  std::optional<Curriculum> curriculum = {};
  // For dp: the number of copies of the net in this process, on as many GPUs or on the CPU.
  int replicas = 1;
  // fp16 also scales the loss, and skips steps whose gradients overflow.
  std::optional<Amp> amp = {};
  // Ends training if a gradient has infinite or NaN elements, before the optimizer's step.
  bool check_finite = false;
  // For ddp: compares the nets of all ranks every that many steps, and ends training unless
  // they are bitwise equal.
  std::optional<std::int64_t> check_in_sync = {};
  // Rank 0 saves the trained net here. A path that cannot be written is refused before
  // training.
  std::optional<std::filesystem::path> save_file = {};
  // Rank 0 saves the state of training here while it goes on, and may resume from it: see Trainer.
  // The tensors are those of the data.
  std::optional<TrainerCheckpointOptions> checkpoints = {};
  // Rank 0 appends to the file, and writes an event file in the folder: see TrainingRecords. With
  // either, the test set is evaluated after each epoch.
  std::optional<std::filesystem::path> metrics_file = {};
  std::optional<std::filesystem::path> tensorboard_folder = {};
  // Rank 0 writes every rank's spans here at the end, as a Trace does; after an exception only its
  // own. A path that cannot be written is refused before training.
  std::optional<std::filesystem::path> trace_file = {};
  // Called on rank 0 after training, if every rank has one.
  CourseObserver on_course = {};
  // Gets rank 0's steps, to show them as they come: there is then no line every 100 steps.
  StepObserver on_step = {};
};

// UsageError for impossible options, so that it comes before ranks are started; reads no data and
// does not check save_file. `parts` is the number of ranks or replicas that share a batch.
void check_train_options(const Recipe& recipe, const TrainOptions& options, int parts);

// Collective, with the same arguments on every rank. single and dp need a group of one: single
// trains the net itself, dp wraps it in DataParallel, ddp in DistributedDataParallel. All make the
// same steps if the global batch is the same. Rank 0 passes a progress line to log after each epoch
// and, without on_step, every 100 steps. Tensors are on group->device(). ddp normalizes batches
// over all ranks (SyncBatchNorm), dp each replica's part. Seeds torch's default generators.
// NonFiniteGradient and OutOfSync on every rank, with the step, if the options request the checks.
// What cannot be written of the metrics, the events, the trace or the course is in the result.
TrainResult train(const Recipe& recipe, TrainMode mode, const TrainOptions& options,
                  const std::shared_ptr<ProcessGroup>& group,
                  const std::function<void(const std::string&)>& log);

}  // namespace lockstep
