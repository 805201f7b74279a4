// SPDX-License-Identifier: BSD-3-Clause
// Checks options, resolves batch sizes and names.
#include "tools/recipes/recipe_options.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/mnist_dataset.h"
#include "tools/recipes/recipe_data.h"
#include "tools/recipes/save_model.h"

namespace lockstep {
namespace {

constexpr std::array kModes{TrainingMode::single, TrainingMode::data_parallel,
                            TrainingMode::distributed};

template <class Number>
void require_within(const char* what, std::optional<Number> value, const Range<Number>& range) {
  if (!value || range.contains(*value)) return;
  throw UsageError(fmt::format("{} {}: give {}", what, *value, in_words(range)));
}

}  // namespace

void check_recipe_options(const Recipe& recipe, const RecipeOptions& options, int parts) {
  const TrainerOptions& trainer = options.trainer;
  const bool has_one_net =
      trainer.mode == TrainingMode::single || trainer.mode == TrainingMode::data_parallel;
  if (has_one_net && trainer.check_in_sync != 0) {
    throw UsageError(
        fmt::format("{} training has one net, which is always in sync with itself; leave out the "
                    "comparison of ranks, or train with ddp",
                    mode_name(trainer.mode)));
  }
  if (trainer.distributed.one_copy_per_host && has_one_net) {
    throw UsageError(
        fmt::format("{} training is one process, with one copy of the net; leave out the one copy "
                    "of several ranks, or train with ddp",
                    mode_name(trainer.mode)));
  }
  if (trainer.distributed.one_copy_per_host && trainer.check_in_sync != 0 &&
      trainer.microbatches == 0) {
    throw UsageError(
        "ranks with one copy of the net have only parts of the gradients, so they cannot be "
        "compared; leave out the one copy, or the comparison of ranks");
  }
  const std::int64_t microbatches = trainer.microbatches;
  if (microbatches != 0) require_within("microbatches", std::optional(microbatches), kMicrobatches);
  if (microbatches > 0 && microbatches < parts) {
    throw UsageError(
        fmt::format("{} microbatches cannot be divided among {} ranks or replicas; "
                    "give at least one for each",
                    microbatches, parts));
  }
  if (microbatches > 0 && options.curriculum) {
    throw UsageError(
        "the scores of a curriculum are computed with the threads of a rank, whose number may "
        "decide their last bits; leave out the microbatches");
  }
  resolve_batch_sizes(options.batch_size, options.global_batch_size, recipe.batch_size,
                      microbatches > 0 ? static_cast<int>(microbatches) : parts);
  require_within("epochs", options.epochs, kEpochs);
  if (trainer.check_in_sync != 0) {
    require_within("check_in_sync", std::optional(trainer.check_in_sync), kStepIntervals);
  }
  require_within("learning rate", options.learning_rate, kLearningRates);
  if (trainer.amp == at::kHalf && trainer.check_finite) {
    throw UsageError(
        "training in fp16 skips steps whose gradients are not finite, so it cannot end at one; "
        "leave out the check, or train in bf16");
  }
  if (options.save_file) format_named_by(*options.save_file);
  const bool reads_images =
      recipe.data == RecipeData::images || recipe.data == RecipeData::any_images;
  const bool reads_files = reads_image_files(recipe, options);
  if (options.data_folder && recipe.data == RecipeData::generated) {
    throw UsageError(fmt::format("recipe {} makes its own data; leave out the data folder {}",
                                 recipe.name, options.data_folder->string()));
  }
  // Before the options that not all data take: in a folder without data, it is not they that fail.
  if (recipe.data == RecipeData::images) require_data_folder(data_path(recipe, options));
  if (recipe.data == RecipeData::any_images) require_images(data_path(recipe, options));
  if (recipe.data == RecipeData::text) require_text(data_path(recipe, options));
  if (options.curriculum) {
    require_within("curriculum's share at the start",
                   std::optional(options.curriculum->start_share), kStartShares);
    require_within("curriculum's steps", options.curriculum->full_at_step, kCurriculumSteps);
    if (!reads_images) {
      throw UsageError(fmt::format(
          "recipe {} has no images to sort by difficulty; leave out the curriculum", recipe.name));
    }
    if (reads_files) {
      throw UsageError(
          fmt::format("{}: images are sorted by difficulty only if they are in MNIST's format; "
                      "leave out the curriculum",
                      data_path(recipe, options).string()));
    }
  }
  if (options.recompute && !recipe.has_blocks) {
    throw UsageError(
        fmt::format("the net of recipe {} has no blocks that backward could compute again; leave "
                    "out the recomputation",
                    recipe.name));
  }
  require_within("image size", options.image_size, kImageSizes);
  require_within("workers", options.workers, kWorkers);
  if (!reads_files && (options.image_size || options.workers)) {
    throw UsageError(
        fmt::format("recipe {} reads no image files from these data; leave out the image size and "
                    "the workers",
                    recipe.name));
  }
}

std::vector<std::string> train_arguments(const RecipeOptions& options) {
  std::vector<std::string> arguments{"--seed", std::to_string(options.seed)};
  const auto add = [&](const char* option, const std::string& value) {
    arguments.emplace_back(option);
    arguments.push_back(value);
  };
  if (options.epochs) add("--epochs", std::to_string(*options.epochs));
  if (options.learning_rate) add("--lr", fmt::format("{}", *options.learning_rate));
  if (options.data_folder) add("--data", options.data_folder->string());
  if (options.image_size) add("--image-size", std::to_string(*options.image_size));
  if (options.workers) add("--workers", std::to_string(*options.workers));
  return arguments;
}

std::filesystem::path data_path(const Recipe& recipe, const RecipeOptions& options) {
  if (options.data_folder) return *options.data_folder;
  switch (recipe.data) {
    case RecipeData::generated:
      return {};
    case RecipeData::images:
    case RecipeData::any_images:
      return "/usr/share/datasets/fashion-mnist";
    case RecipeData::text:
      return "/usr/share/common-licenses";
  }
  return {};
}

bool reads_image_files(const Recipe& recipe, const RecipeOptions& options) {
  return recipe.data == RecipeData::any_images && has_image_folders(data_path(recipe, options));
}

BatchSizes resolve_batch_sizes(std::optional<std::int64_t> rank, std::optional<std::int64_t> global,
                               std::int64_t recipe, int ranks) {
  if (rank && global) {
    throw UsageError(fmt::format(
        "both a rank's batch size ({}) and a global one ({}) are given; give one of them", *rank,
        *global));
  }
  if (global) {
    if (*global < 1 || *global % ranks != 0) {
      throw UsageError(fmt::format(
          "the global batch size {} is not a multiple of the number of ranks, {}; give a "
          "positive multiple of {}",
          *global, ranks, ranks));
    }
    return {*global / ranks, *global};
  }
  const std::int64_t size = rank.value_or(recipe);
  if (size < 1) {
    throw UsageError(fmt::format("the batch size {} is not positive; give at least 1", size));
  }
  return {size, size * ranks};
}

std::string_view mode_name(TrainingMode mode) {
  switch (mode) {
    case TrainingMode::automatic:
      return "automatic";
    case TrainingMode::single:
      return "single";
    case TrainingMode::data_parallel:
      return "dp";
    case TrainingMode::distributed:
      return "ddp";
  }
  return "unknown";
}

TrainingMode find_mode(const std::string& name) {
  const auto found =
      std::ranges::find_if(kModes, [&](TrainingMode mode) { return mode_name(mode) == name; });
  if (found != kModes.end()) return *found;
  throw UsageError(fmt::format("there is no mode {}; the modes are single, dp and ddp", name));
}

std::string_view amp_name(at::ScalarType type) {
  return type == at::kBFloat16 ? "bf16" : "fp16";
}

at::ScalarType find_amp(const std::string& name) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    if (amp_name(type) == name) return type;
  }
  throw UsageError(fmt::format("there is no half precision {}; give bf16 or fp16", name));
}

}  // namespace lockstep
