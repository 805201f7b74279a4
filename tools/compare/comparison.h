// SPDX-License-Identifier: BSD-3-Clause
// Trains the same net in several modes and compares them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/recipes/recipe.h"
#include "tools/recipes/recipe_options.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

struct ComparisonOptions {
  // Starts one run; the options of `lockstep train` are appended.
  std::vector<std::string> train_program;
  // The modes to compare, in the order of their rows.
  std::vector<TrainingMode> modes = {TrainingMode::single, TrainingMode::data_parallel,
                                     TrainingMode::distributed};
  // The numbers of ranks of ddp and of replicas of dp; each gets a row.
  std::vector<int> ranks = {2};
  // The cores that training runs may use.
  int cores = 1;
  // On GPUs thread counts are not changed, and single runs once. On CPU each rank and each replica
  // gets cores / max(ranks), so that the rows of a mode differ only in the number of ranks; single
  // runs with one thread, and again with all cores.
  bool on_gpu = false;
  std::optional<std::string> device = {};
  // The backend of the ranks of ddp.
  std::string backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // `training` has the batch sizes and trainer.lr_scale of the rows with the most ranks;
  // `modes` and `ranks` replace its mode and replicas.
  RecipeOptions training = {};
};

// What a mode demands of a program, and where it can run.
struct ModeNeeds {
  // Lines of its example that the single-device example lacks.
  int lines = 0;
  // "one device", "one machine" or "many machines".
  std::string_view reach;
};

ModeNeeds needs_of(TrainingMode mode);

struct ComparisonRow {
  TrainResult result = {};
  // The first row's seconds_per_epoch divided by this row's.
  double speedup = 1;
  // Cores, or GPUs: ranks times the greater of threads and replicas, at most all cores.
  int cores_in_use = 1;
  // speedup divided by the ratio of cores_in_use to the first row's.
  double efficiency = 1;
  ModeNeeds needs = {};
};

// Two views of the same runs, in the same order: with the same global batch, and with the same
// batch on each rank.
struct Comparison {
  std::int64_t global_batch_size = 0;
  // The batch of each rank and replica in the rows with the most ranks.
  std::int64_t batch_size = 0;
  int cores = 1;
  // Every row has the global batch global_batch_size: all make the same steps.
  std::vector<ComparisonRow> rows = {};
  // Every row has batch_size on each rank: N ranks take N times the samples per step.
  std::vector<ComparisonRow> rows_same_rank_batch = {};
};

// Starts the runs one after another, each in new processes, with the same seed, data and
// learning rate; a scaled learning rate is proportional to the global batch. A run that is in both
// views is made once. The output of the runs goes to standard error. UsageError if a number of
// ranks does not divide the global batch; other errors as from run_local_training.
Comparison compare(const Recipe& recipe, const ComparisonOptions& options);

}  // namespace lockstep
