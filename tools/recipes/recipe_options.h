// SPDX-License-Identifier: BSD-3-Clause
// The options of a recipe's training: its Trainer's, and those that only a recipe needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/core/number.h"
#include "lockstep/train/trainer_options.h"
#include "tools/recipes/curriculum.h"
#include "tools/recipes/observation.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/training_course.h"

namespace lockstep {

// The largest number of epochs for which the number of all steps of a run fits an std::int64_t.
constexpr Range<std::int64_t> kEpochs{1, 1'000'000'000};
// A number of steps, up to the most that a run may have.
constexpr Range<std::int64_t> kStepIntervals{1, std::numeric_limits<std::int64_t>::max()};
// The largest batches for which the samples of a step, over the greatest number of ranks, fit an
// std::int64_t.
constexpr Range<std::int64_t> kBatchSizes{1, 1'000'000'000};
constexpr Range<std::int64_t> kGlobalBatchSizes{1, 100'000'000'000'000};
constexpr Range<std::int64_t> kMicrobatches{1, 32'768};
// Rates that still fit a float after scaling, and after Adam's division.
constexpr Range<double> kLearningRates{1e-30, 1e30};
constexpr Range<double> kLearningRateScales{1, 1e6};
// The height and width of images, and the threads that read them.
constexpr Range<std::int64_t> kImageSizes{8, 4096};
constexpr Range<int> kWorkers{0, 1024};
constexpr Range<std::int64_t> kSeeds{std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()};

// An empty option means the recipe's value.
struct RecipeOptions {
  // The options of the recipe's Trainer. The run sets those that follow from the recipe, the data
  // and the mode: epochs, lr_schedule, sync_batchnorm, shard_optimizer, whole_gradients, the
  // checkpoints' tensors, log and batches_per_line. With TrainingMode::data_parallel,
  // data_parallel.replicas is at least 1; on GPUs, the replicas use the group's device and the
  // following ones. lr_scale multiplies the learning rate, after a warm-up. Rank 0 reads and writes
  // the files and folders.
  TrainerOptions trainer = {};
  std::optional<std::int64_t> epochs = {};
  // See resolve_batch_sizes.
  std::optional<std::int64_t> batch_size = {};
  std::optional<std::int64_t> global_batch_size = {};
  std::optional<double> learning_rate = {};
  // For recipes that read a data set: a folder of images (default: Debian's Fashion-MNIST), or a
  // text file or a folder of them (default: Debian's licences).
  std::optional<std::filesystem::path> data_folder = {};
  // For image files: the height and width that they get, in pixels (default: 224), and the threads
  // of each rank that read them (default: 2).
  std::optional<std::int64_t> image_size = {};
  std::optional<int> workers = {};
  std::int64_t seed = 0;
  // For recipes whose nets have blocks: backward computes each block again, which keeps fewer
  // tensors in memory. The trained net has the same bits.
  bool recompute = false;
  // For recipes that classify images: visits them from easy to hard.
  std::optional<Curriculum> curriculum = {};
  // Rank 0 saves the trained net here. A path that cannot be written is refused before training.
  std::optional<std::filesystem::path> save_file = {};
  // Rank 0 appends to the file, and writes an event file in the folder: see MetricsWriter. With
  // either, the test set is evaluated after each epoch.
  std::optional<std::filesystem::path> metrics_file = {};
  std::optional<std::filesystem::path> tensorboard_folder = {};
  // Rank 0 writes the spans of every rank here at the end, as a Trace does; after an exception only
  // its own. A path that cannot be written is refused before training.
  std::optional<std::filesystem::path> trace_file = {};
  // Called on rank 0 after training, if every rank has one.
  CourseObserver on_course = {};
  // Called after each step of rank 0. Replaces the line every 100 steps.
  StepObserver on_step = {};
};

// UsageError for impossible options, so that it comes before ranks are started. Reads no data, and
// checks only the extension of save_file. `parts` is the number of ranks or replicas that share a
// batch; with trainer.microbatches, it is these that batches are divided into.
void check_recipe_options(const Recipe& recipe, const RecipeOptions& options, int parts);

// Returns the options of `lockstep train` for the seed, the epochs, the learning rate and the data;
// those of ranks, batches and the Trainer are the caller's.
std::vector<std::string> train_arguments(const RecipeOptions& options);

// Returns where the recipe finds its data; empty if it reads none.
std::filesystem::path data_path(const Recipe& recipe, const RecipeOptions& options);

// Whether the recipe takes these data from image files: see load_image_files().
bool reads_image_files(const Recipe& recipe, const RecipeOptions& options);

struct BatchSizes {
  std::int64_t rank;
  std::int64_t global;  // rank * number of ranks
};

// Resolves the batch size per rank or the global one; without either, the recipe's on each rank.
// UsageError if both are given, if one is not positive, or if the global one is not divisible by
// the number of ranks.
BatchSizes resolve_batch_sizes(std::optional<std::int64_t> rank, std::optional<std::int64_t> global,
                               std::int64_t recipe, int ranks);

// The command's names: "single", "dp" and "ddp". UsageError, listing them, for another name.
std::string_view mode_name(TrainingMode mode);
TrainingMode find_mode(const std::string& name);

// The command's names of TrainerOptions::amp: "bf16" and "fp16". UsageError, listing both, for
// another name.
std::string_view amp_name(at::ScalarType type);
at::ScalarType find_amp(const std::string& name);

}  // namespace lockstep
