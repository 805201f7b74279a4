// SPDX-License-Identifier: BSD-3-Clause
// Plans the runs of both views, starts each as `lockstep train`, and computes speedup and
// efficiency.
#include "tools/compare/comparison.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "tools/build_facts.h"
#include "tools/recipes/launch_plan.h"
#include "tools/recipes/local_training.h"

namespace lockstep {
namespace {

// For dp, `ranks` counts replicas in one process.
struct Run {
  TrainingMode mode;
  int ranks = 1;
  std::optional<int> threads = {};
  std::int64_t global_batch_size = 0;

  bool operator==(const Run&) const = default;
  int processes() const { return mode == TrainingMode::distributed ? ranks : 1; }
};

int most(const std::vector<int>& ranks) {
  return *std::ranges::max_element(ranks);
}

std::vector<Run> runs_of(TrainingMode mode, const ComparisonOptions& options) {
  if (mode == TrainingMode::single) {
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
    run.threads = mode == TrainingMode::data_parallel ? threads_for_replicas(threads * ranks, ranks)
                                                      : threads;
  }
  return runs;
}

// Without batch sizes.
std::vector<Run> plan_runs(const ComparisonOptions& options) {
  std::vector<Run> all;
  for (const TrainingMode mode : options.modes) {
    const std::vector<Run> runs = runs_of(mode, options);
    all.insert(all.end(), runs.begin(), runs.end());
  }
  return all;
}

std::string counted(int number, const char* what) {
  return fmt::format(", {} {}{}", number, what, number == 1 ? "" : "s");
}

std::string title(const Run& run) {
  std::string text(mode_name(run.mode));
  if (run.mode == TrainingMode::data_parallel) text += counted(run.ranks, "replica");
  if (run.mode == TrainingMode::distributed) text += counted(run.ranks, "rank");
  if (run.threads) text += counted(*run.threads, "thread");
  return text + fmt::format(", global batch {}", run.global_batch_size);
}

// The options of `lockstep train` for one run.
std::vector<std::string> arguments_of_run(const Recipe& recipe, const Run& run,
                                          const ComparisonOptions& options,
                                          double learning_rate_scale) {
  std::vector<std::string> arguments = train_arguments(options.training);
  arguments.push_back(recipe.name);
  const auto add = [&](const char* option, const std::string& value) {
    arguments.emplace_back(option);
    arguments.push_back(value);
  };
  add("--mode", std::string(mode_name(run.mode)));
  add("--ranks", std::to_string(run.ranks));
  add("--global-batch-size", std::to_string(run.global_batch_size));
  add("--lr-scale", fmt::format("{}", learning_rate_scale));
  if (options.device) add("--device", *options.device);
  if (run.mode == TrainingMode::distributed) {
    add("--backend", options.backend);
    add("--timeout", fmt::format("{}", options.timeout.count() / 1000.0));
    if (options.training.trainer.distributed.one_copy_per_host && run.ranks > 1) {
      arguments.emplace_back("--one-copy");
    }
  }
  return arguments;
}

void check_ranks(const ComparisonOptions& options) {
  if (options.modes.empty() || options.ranks.empty()) {
    throw UsageError("a comparison needs at least one mode and one number of ranks");
  }
  for (const int ranks : options.ranks) {
    if (ranks < 1) throw UsageError(fmt::format("--ranks {}: give at least 1", ranks));
  }
}

// Makes each run once, however often its result is asked for.
class Trainings {
 public:
  Trainings(const Recipe& recipe, const ComparisonOptions& options, BatchSizes batch)
      : recipe_(recipe), options_(options), batch_(batch) {}

  const TrainResult& result_of(const Run& run) {
    for (const auto& [known, result] : done_) {
      if (known == run) return result;
    }
    return done_.emplace_back(run, train(run)).second;
  }

 private:
  TrainResult train(const Run& run) const {
    LocalTrainingOptions training;
    training.program = options_.train_program;
    for (auto& argument : arguments_of_run(recipe_, run, options_, learning_rate_scale(run))) {
      training.program.push_back(std::move(argument));
    }
    training.ranks = run.processes();
    training.threads = run.threads;
    training.output = {.stream = OutputStream::err, .prefix = fmt::format("[{}] ", title(run))};
    return run_local_training(training);
  }

  // The options have the scale for the largest batch; an unscaled rate stays unscaled.
  double learning_rate_scale(const Run& run) const {
    const double part =
        static_cast<double>(run.global_batch_size) / static_cast<double>(batch_.global);
    return std::max(1.0, options_.training.trainer.lr_scale * part);
  }

  const Recipe& recipe_;
  const ComparisonOptions& options_;
  BatchSizes batch_;
  std::vector<std::pair<Run, TrainResult>> done_;
};

int cores_in_use(const ComparisonOptions& options, const TrainResult& result) {
  if (options.on_gpu) return result.ranks * result.replicas;
  return std::min(result.ranks * std::max(result.threads, result.replicas), options.cores);
}

std::vector<ComparisonRow> rows_of(const std::vector<Run>& runs, const ComparisonOptions& options,
                                   Trainings& trainings) {
  std::vector<ComparisonRow> rows;
  for (const Run& run : runs) {
    ComparisonRow row{.result = trainings.result_of(run)};
    row.cores_in_use = cores_in_use(options, row.result);
    row.needs = needs_of(run.mode);
    const ComparisonRow& first = rows.empty() ? row : rows.front();
    row.speedup = first.result.seconds_per_epoch / row.result.seconds_per_epoch;
    row.efficiency = row.speedup * first.cores_in_use / row.cores_in_use;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

// The build counts the lines in examples/ when it is configured.
ModeNeeds needs_of(TrainingMode mode) {
  switch (mode) {
    case TrainingMode::automatic:
      break;
    case TrainingMode::single:
      return {.lines = 0, .reach = "one device"};
    case TrainingMode::data_parallel:
      return {.lines = kLinesOfDp, .reach = "one machine"};
    case TrainingMode::distributed:
      return {.lines = kLinesOfDdp, .reach = "many machines"};
  }
  return {};
}

Comparison compare(const Recipe& recipe, const ComparisonOptions& options) {
  check_ranks(options);
  check_recipe_options(recipe, options.training, most(options.ranks));
  const auto batch =
      resolve_batch_sizes(options.training.batch_size, options.training.global_batch_size,
                          recipe.batch_size, most(options.ranks));
  for (const int ranks : options.ranks) resolve_batch_sizes({}, batch.global, 0, ranks);
  Trainings trainings(recipe, options, batch);
  Comparison comparison{
      .global_batch_size = batch.global, .batch_size = batch.rank, .cores = options.cores};
  std::vector<Run> runs = plan_runs(options);
  for (Run& run : runs) run.global_batch_size = batch.global;
  comparison.rows = rows_of(runs, options, trainings);
  for (Run& run : runs) run.global_batch_size = batch.rank * run.ranks;
  comparison.rows_same_rank_batch = rows_of(runs, options, trainings);
  return comparison;
}

}  // namespace lockstep
