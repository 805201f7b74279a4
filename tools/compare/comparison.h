// SPDX-License-Identifier: BSD-3-Clause
// The same training in several modes, side by side.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/recipes/train.h"

namespace lockstep {

struct ComparisonOptions {
  // Runs one training, given the options of `lockstep train` as further arguments.
  std::vector<std::string> train_program;
  // Which there are rows of, in their order here.
  std::vector<TrainMode> modes = {TrainMode::single, TrainMode::dp, TrainMode::ddp};
  // Of dp and ddp; with several numbers there is a row for each.
  std::vector<int> ranks = {2};
  // That all trainings together may use.
  int cores = 1;
  // On GPUs the number of threads is left alone, and single is run once. On CPU each rank and each
  // replica has an equal part of the cores where there are most of them, so that what differs
  // between rows of a mode is their number; single has one thread, and once more all cores.
  bool on_gpu = false;
  std::optional<std::string> device = {};
  // Of ddp's ranks.
  std::string backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // The global batch is the same for all trainings. A batch size counts for a rank where there are
  // most of them.
  TrainOptions training = {};
};

// What a mode asks of a program, and how far it goes.
struct ModeNeeds {
  // That its example has beyond the one for a single device.
  int lines = 0;
  // "one device", "one machine" or "many machines".
  std::string_view reach;
};

ModeNeeds needs_of(TrainMode mode);

struct ComparisonRow {
  TrainResult result = {};
  // The first row's seconds_per_epoch divided by this one's.
  double speedup = 1;
  // Cores, or GPUs: ranks times threads or replicas, whichever are more, at most all cores.
  int cores_in_use = 1;
  // speedup divided by how many times as many cores are in use as in the first row.
  double efficiency = 1;
  ModeNeeds needs = {};
};

struct Comparison {
  std::int64_t global_batch_size = 0;
  int cores = 1;
  std::vector<ComparisonRow> rows;
};

// Runs the trainings one after the other, each in fresh processes, with the same seed, data, global
// batch and learning rate. What they print goes to this process's standard error. UsageError if a
// number of ranks does not divide the global batch; other errors are those of run_local_training.
Comparison compare(const Recipe& recipe, const ComparisonOptions& options);

// Rows and columns for people, at most 100 characters wide; ends with a newline.
std::string to_table(const Comparison& comparison);
// One object, on one line; documented in docs/cli.md.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep
