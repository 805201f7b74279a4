// SPDX-License-Identifier: BSD-3-Clause
// Plans the runs, starts each as `lockstep train`, and computes speedup and efficiency.
#include "tools/compare/comparison.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "tools/recipes/batch_size.h"
#include "tools/recipes/launch_plan.h"
#include "tools/recipes/local_training.h"

namespace lockstep {
namespace {

// For dp, `ranks` counts replicas in one process.
struct Run {
  TrainMode mode;
  int ranks = 1;
  std::optional<int> threads = {};

  int processes() const { return mode == TrainMode::ddp ? ranks : 1; }
};

int most(const std::vector<int>& ranks) {
  return *std::ranges::max_element(ranks);
}

std::vector<Run> runs_of(TrainMode mode, const ComparisonOptions& options) {
  if (mode == TrainMode::single) {
    if (options.on_gpu) return {{.mode = mode}};
    std::vector<Run> runs{{.mode = mode, .threads = 1}};
    if (options.cores > 1) runs.push_back({.mode = mode, .threads = options.cores});
    return runs;
  }
  std::vector<Run> runs;
  const int threads = std::max(1, options.cores / most(options.ranks));
  for (const int ranks : options.ranks) {
    Run& run = runs.emplace_back(Run{.mode = mode, .ranks = ranks});
    if (options.on_gpu) continue;
    run.threads = mode == TrainMode::dp ? threads_for_replicas(threads * ranks, ranks) : threads;
  }
  return runs;
}

std::vector<Run> plan_runs(const ComparisonOptions& options) {
  std::vector<Run> all;
  for (const TrainMode mode : options.modes) {
    const std::vector<Run> runs = runs_of(mode, options);
    all.insert(all.end(), runs.begin(), runs.end());
  }
  return all;
}

std::string counted(int number, const char* what) {
  return fmt::format(", {} {}{}", number, what, number == 1 ? "" : "s");
}

std::string title(const Run& run) {
  std::string text(name(run.mode));
  if (run.mode == TrainMode::dp) text += counted(run.ranks, "replica");
  if (run.mode == TrainMode::ddp) text += counted(run.ranks, "rank");
  if (run.threads) text += counted(*run.threads, "thread");
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
                                     "--ranks",
                                     std::to_string(run.ranks),
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
  if (run.mode == TrainMode::ddp) {
    add("--backend", options.backend);
    add("--timeout", fmt::format("{}", options.timeout.count() / 1000.0));
  }
  return arguments;
}

int cores_in_use(const ComparisonOptions& options, const TrainResult& result) {
  if (options.on_gpu) return result.ranks * result.replicas;
  return std::min(result.ranks * std::max(result.threads, result.replicas), options.cores);
}

void check_ranks(const ComparisonOptions& options) {
  if (options.modes.empty() || options.ranks.empty()) {
    throw UsageError("a comparison needs at least one mode and one number of ranks");
  }
  for (const int ranks : options.ranks) {
    if (ranks < 1) throw UsageError(fmt::format("--ranks {}: give at least 1", ranks));
  }
}

}  // namespace

// The build counts the lines in examples/ when it is configured.
ModeNeeds needs_of(TrainMode mode) {
  switch (mode) {
    case TrainMode::single:
      return {.lines = 0, .reach = "one device"};
    case TrainMode::dp:
      return {.lines = LOCKSTEP_LINES_OF_DP, .reach = "one machine"};
    case TrainMode::ddp:
      return {.lines = LOCKSTEP_LINES_OF_DDP, .reach = "many machines"};
  }
  return {};
}

Comparison compare(const Recipe& recipe, const ComparisonOptions& options) {
  check_ranks(options);
  check_train_options(recipe, options.training, most(options.ranks));
  const auto batch =
      resolve_batch_sizes(options.training.batch_size, options.training.global_batch_size,
                          recipe.batch_size, most(options.ranks));
  for (const int ranks : options.ranks) resolve_batch_sizes({}, batch.global, 0, ranks);
  Comparison comparison{.global_batch_size = batch.global, .cores = options.cores, .rows = {}};
  for (const Run& run : plan_runs(options)) {
    LocalTrainingOptions training;
    training.program = options.train_program;
    for (auto& argument : train_arguments(recipe, run, options, batch.global)) {
      training.program.push_back(std::move(argument));
    }
    training.ranks = run.processes();
    training.threads = run.threads;
    training.output = {.stream = OutputStream::err, .prefix = fmt::format("[{}] ", title(run))};
    ComparisonRow row{.result = run_local_training(training)};
    const double first = comparison.rows.empty() ? row.result.seconds_per_epoch
                                                 : comparison.rows.front().result.seconds_per_epoch;
    row.speedup = first / row.result.seconds_per_epoch;
    row.cores_in_use = cores_in_use(options, row.result);
    const int first_cores =
        comparison.rows.empty() ? row.cores_in_use : comparison.rows.front().cores_in_use;
    row.efficiency = row.speedup * first_cores / row.cores_in_use;
    row.needs = needs_of(run.mode);
    comparison.rows.push_back(std::move(row));
  }
  return comparison;
}

}  // namespace lockstep
