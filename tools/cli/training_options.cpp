// SPDX-License-Identifier: BSD-3-Clause
// Describes the options, and translates them for the library.
#include "training_options.h"

#include "number_option.h"
#include <fmt/format.h>

#include "lockstep/comm/init_process_group.h"
#include "tools/cli/backend_option.h"
#include "tools/recipes/batch_size.h"

namespace lockstep::cli {

void TrainingOptions::describe(::CLI::App& app) {
  std::string recipes = "Train this recipe:";
  for (const auto& known : all_recipes()) {
    recipes += fmt::format("\n  {}: {}", known.name, known.summary);
  }
  app.add_option("RECIPE", recipe, recipes)->required();
  app.add_option(
         "--device", device,
         "Train on cpu, cuda (a GPU for each rank) or cuda:N; by default on a GPU if there is one")
      ->type_name("DEVICE");
  add_backend_option(app, backend);
  timeout.describe(app);
  add_number(app, "--epochs", epochs, kEpochs,
             "Make this many passes over the data; by default the recipe's");
  add_number(app, "--batch-size", batch_size, kBatchSizes,
             "Take this many samples per step on each rank; by default the recipe's");
  add_number(app, "--global-batch-size", global_batch_size, kGlobalBatchSizes,
             "Take this many samples per step on all ranks together, instead of --batch-size");
  add_number(app, "--lr", learning_rate, kLearningRates,
             "Set the learning rate; by default the recipe's")
      ->type_name("RATE");
  app.add_flag("--scale-lr", scale_learning_rate,
               "Multiply the learning rate by the number of ranks, with a gradual warm-up");
  app.add_option("--data", data,
                 "Read a data set in MNIST's format from this folder, by default "
                 "/usr/share/datasets/fashion-mnist; for char-transformer, this text file or "
                 "folder of text files, by default /usr/share/common-licenses")
      ->type_name("PATH");
  add_number(app, "--seed", seed, kSeeds,
             "Seed the weights and the order of samples with this number");
  app.add_flag("--json", json, "Print one JSON object and nothing else on standard output");
}

TrainOptions TrainingOptions::train_options(double scale) const {
  TrainOptions options;
  options.epochs = epochs;
  options.batch_size = batch_size;
  options.global_batch_size = global_batch_size;
  options.learning_rate = learning_rate;
  if (scale_learning_rate) options.learning_rate_scale = scale;
  if (data) options.data_folder = *data;
  options.seed = seed;
  return options;
}

}  // namespace lockstep::cli
