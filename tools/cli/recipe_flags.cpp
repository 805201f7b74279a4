// SPDX-License-Identifier: BSD-3-Clause
// Describes the options, and rewrites settings as options.
#include "tools/cli/recipe_flags.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "tools/cli/option_values.h"

namespace lockstep::cli {
namespace {

constexpr std::string_view kSet = "--set";
// The options of a recipe that decide what a training run learns. `compare` lacks some of them.
constexpr std::array kKeys{"epochs",
                           "batch-size",
                           "global-batch-size",
                           "lr",
                           "scale-lr",
                           "seed",
                           "data",
                           "image-size",
                           "curriculum",
                           "curriculum-start",
                           "curriculum-steps",
                           "amp"};

std::vector<std::string> keys_of(const ::CLI::App& app) {
  std::vector<std::string> keys;
  for (const std::string key : kKeys) {
    if (app.get_option_no_throw("--" + key) != nullptr) keys.push_back(key);
  }
  return keys;
}

std::string as_option(const std::string& setting, const ::CLI::App& app) {
  const std::size_t equals = setting.find('=');
  std::string key = setting.substr(0, equals);
  std::ranges::replace(key, '_', '-');
  const auto keys = keys_of(app);
  if (std::ranges::count(keys, key) == 0) {
    throw UsageError(fmt::format("--set \"{}\": there is no option \"{}\"; the options are {}",
                                 setting, key, fmt::join(keys, ", ")));
  }
  if (equals == std::string::npos || equals + 1 == setting.size()) {
    throw UsageError(fmt::format("--set \"{}\": give a value, as in --set lr=0.1", setting));
  }
  return fmt::format("--{}={}", key, setting.substr(equals + 1));
}

}  // namespace

void RecipeFlags::describe(::CLI::App& app) {
  std::string recipes = "Recipe to train:";
  for (const auto& known : all_recipes()) {
    recipes += fmt::format("\n  {}: {}", known.name, known.summary);
  }
  app.add_option("RECIPE", recipe, recipes)->required();
  app.option_defaults()->group("Ranks and devices");
  app.add_option("--device", device,
                 "Device: cpu, cuda (a GPU for each rank) or cuda:N (default: a GPU if there is "
                 "one, else cpu)")
      ->type_name("DEVICE");
  ranks.describe(app);
  app.add_flag(
      "--one-copy", options.trainer.distributed.one_copy_per_host,
      "One copy of the parameters for all ranks of ddp on a host, and an optimizer sharded "
      "over the ranks (default: a copy for each rank)");
  app.option_defaults()->group("Training");
  add_number(app, "--epochs", options.epochs, kEpochs, "Number of epochs (default: the recipe's)");
  add_number(app, "--batch-size", options.batch_size, kBatchSizes,
             "Number of samples per step on each rank (default: the recipe's)");
  add_number(app, "--global-batch-size", options.global_batch_size, kGlobalBatchSizes,
             "Number of samples per step on all ranks together (default: --batch-size times "
             "the number of ranks)");
  add_number(app, "--lr", options.learning_rate, kLearningRates,
             "Learning rate (default: the recipe's)")
      ->type_name("RATE");
  app.add_flag("--scale-lr", scale_learning_rate,
               "Learning rate times the number of ranks, with a gradual warm-up (default: off)");
  add_path(app, "--data", options.data_folder,
           "Folder with a data set in MNIST's format (default: /usr/share/datasets/fashion-mnist); "
           "for resnet18 also one with the folders train and val, each with a folder of JPEG or "
           "PNG files for each class; for char-transformer, a text file or a folder of text files "
           "(default: /usr/share/common-licenses)")
      ->type_name("PATH");
  add_number(app, "--image-size", options.image_size, kImageSizes,
             "Height and width to which images in files are cut and scaled (default: 224)")
      ->type_name("PIXELS");
  add_number(app, "--workers", options.workers, kWorkers,
             "Number of threads on each rank that read and augment images in files (default: 2)");
  add_number(
      app, "--seed", options.seed, kSeeds,
      fmt::format("Seed of the weights and the order of samples (default: {})", options.seed));
  app.option_defaults()->group("Output");
  app.add_flag("--json", json, "One JSON object, and nothing else, on standard output");
}

void describe_settings(::CLI::App& app) {
  app.add_option("--set")
      ->description(
          fmt::format("One of the options {}; may be repeated", fmt::join(keys_of(app), ", ")))
      ->type_name("KEY=VALUE")
      ->group("Training");
}

std::vector<std::string> expand_settings(const std::vector<std::string>& arguments,
                                         const ::CLI::App& app) {
  std::vector<std::string> expanded;
  for (auto argument = arguments.begin(); argument != arguments.end(); ++argument) {
    if (*argument == kSet && argument + 1 != arguments.end()) {
      expanded.push_back(as_option(*++argument, app));
    } else if (argument->starts_with(std::string(kSet) + "=")) {
      expanded.push_back(as_option(argument->substr(kSet.size() + 1), app));
    } else {
      expanded.push_back(*argument);
    }
  }
  return expanded;
}

}  // namespace lockstep::cli
