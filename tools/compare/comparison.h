// SPDX-License-Identifier: BSD-3-Clause
// Trains the same net in several modes and compares them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/recipes/train.h"

namespace lockstep {

struct ComparisonOptions {
  // Starts one run; the options of `lockstep train` are appended.
  std::vector<std::string> train_program;
  // The modes to compare, in the order of their rows.
  std::vector<TrainMode> modes = {TrainMode::single, TrainMode::dp, TrainMode::ddp};
  // For dp and ddp; each number gets a row.
  std::vector<int> ranks = {2};
  // The cores that training runs may use.
  int cores = 1;
  // On GPUs thread counts are not changed, and single runs once. On CPU each rank and each replica
  // gets cores / max(ranks), so that rows of a mode differ only in their number; single runs with
  // one thread, and again with all cores.
  bool on_gpu = false;
  std::optional<std::string> device = {};
  // The backend of ddp's ranks.
  std::string backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Batch sizes and the learning rate's scale are those of the rows with the most ranks.
  TrainOptions training = {};
};

// A mode's demands on a program, and its reach.
struct ModeNeeds {
  // Lines of its example that the single-device one does not have.
  int lines = 0;
  // "one device", "one machine" or "many machines".
  std::string_view reach;
};

ModeNeeds needs_of(TrainMode mode);

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

// Two views of the same runs, in the same order: what a given training gains, and what more ranks
// add.
struct Comparison {
  std::int64_t global_batch_size = 0;
  // Of each rank and replica, where the ranks are most.
  std::int64_t batch_size = 0;
  int cores = 1;
  // With global_batch_size in every row: all make the same steps.
  std::vector<ComparisonRow> rows = {};
  // With batch_size in every row: N ranks take N times the samples a step.
  std::vector<ComparisonRow> rows_same_rank_batch = {};
};

// Starts the runs one after another, each in new processes, with the same seed, data and
// learning rate; a scaled learning rate is proportional to the global batch. A run that is in both
// views is made once. Their output goes to this process's standard error. UsageError if a number
// of ranks does not divide the global batch; other errors are run_local_training's.
Comparison compare(const Recipe& recipe, const ComparisonOptions& options);

// Human-readable tables, at most 100 characters wide; ends with a newline.
std::string to_table(const Comparison& comparison);
// One object, on one line; documented in docs/cli.md.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep
