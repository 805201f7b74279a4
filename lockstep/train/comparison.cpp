// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/comparison.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/train/batch_size.h"
#include "lockstep/train/local_training.h"

namespace lockstep {
namespace {

struct Run {
  TrainMode mode;
  int ranks;
  std::optional<int> threads;
};

std::vector<Run> plan_runs(const ComparisonOptions& options) {
  if (options.on_gpu) {
    return {{TrainMode::single, 1, std::nullopt}, {TrainMode::ddp, options.ranks, std::nullopt}};
  }
  return {{TrainMode::single, 1, 1},
          {TrainMode::single, 1, options.cores},
          {TrainMode::ddp, options.ranks, std::max(1, options.cores / options.ranks)}};
}

std::string title(const Run& run) {
  std::string text =
      run.mode == TrainMode::single ? "single" : fmt::format("ddp, {} ranks", run.ranks);
  if (run.threads) text += fmt::format(", {} thread{}", *run.threads, *run.threads == 1 ? "" : "s");
  return text;
}

// The options of `lockstep train` for one run.
std::vector<std::string> train_arguments(const Recipe& recipe, const Run& run,
                                         const ComparisonOptions& options,
                                         std::int64_t global_batch_size) {
  const TrainOptions& training = options.training;
  std::vector<std::string> arguments{recipe.name,
                                     "--mode",
                                     std::string(name(run.mode)),
                                     "--global-batch-size",
                                     std::to_string(global_batch_size),
                                     "--seed",
                                     std::to_string(training.seed),
                                     "--lr-scale",
                                     fmt::format("{}", training.learning_rate_scale)};
  const auto add = [&](const char* option, const std::string& value) {
    arguments.emplace_back(option);
    arguments.push_back(value);
  };
  if (training.epochs) add("--epochs", std::to_string(*training.epochs));
  if (training.learning_rate) add("--lr", fmt::format("{}", *training.learning_rate));
  if (training.data_folder) add("--data", training.data_folder->string());
  if (options.device) add("--device", *options.device);
  return arguments;
}

int cores_in_use(const ComparisonOptions& options, const TrainResult& result) {
  if (options.on_gpu) return result.ranks;
  return std::min(result.ranks * result.threads, options.cores);
}

}  // namespace

Comparison compare(const Recipe& recipe, const ComparisonOptions& options) {
  check_train_options(recipe, options.training, options.ranks);
  const auto batch =
      resolve_batch_sizes(options.training.batch_size, options.training.global_batch_size,
                          recipe.batch_size, options.ranks);
  Comparison comparison{.global_batch_size = batch.global, .cores = options.cores, .rows = {}};
  for (const Run& run : plan_runs(options)) {
    LocalTrainingOptions training;
    training.program = options.train_program;
    for (auto& argument : train_arguments(recipe, run, options, batch.global)) {
      training.program.push_back(std::move(argument));
    }
    training.ranks = run.ranks;
    training.threads = run.threads;
    training.output = {.stream = OutputStream::err, .prefix = fmt::format("[{}] ", title(run))};
    ComparisonRow row{.result = run_local_training(training)};
    const double first = comparison.rows.empty() ? row.result.seconds_per_epoch
                                                 : comparison.rows.front().result.seconds_per_epoch;
    row.speedup = first / row.result.seconds_per_epoch;
    row.efficiency = row.speedup / cores_in_use(options, row.result);
    comparison.rows.push_back(std::move(row));
  }
  return comparison;
}

}  // namespace lockstep
