// SPDX-License-Identifier: BSD-3-Clause
// The same training by one process and by several, side by side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/train.h"

namespace lockstep {

struct ComparisonOptions {
  // Runs one training, given the options of `lockstep train` as further arguments.
  std::vector<std::string> train_program;
  // Of the training with ddp.
  int ranks = 2;
  // That all trainings together may use.
  int cores = 1;
  // On GPUs the number of threads is left alone, and single is run once.
  bool on_gpu = false;
  std::optional<std::string> device = {};
  // The global batch is the same for all trainings. A batch size counts for a rank of ddp.
  TrainOptions training = {};
};

struct ComparisonRow {
  TrainResult result;
  // The first row's seconds_per_epoch divided by this one's.
  double speedup = 1;
  // speedup divided by the cores in use: ranks * threads, at most all cores; by ranks on GPUs.
  double efficiency = 1;
};

struct Comparison {
  std::int64_t global_batch_size = 0;
  int cores = 1;
  std::vector<ComparisonRow> rows;
};

// Trains single with one thread, single with all cores' threads, and ddp, one after the other, each
// in fresh processes, with the same seed, data, global batch and learning rate. What they print
// goes to this process's standard error. Errors are those of run_local_training.
Comparison compare(const Recipe& recipe, const ComparisonOptions& options);

// Rows and columns for people, at most 100 characters wide; ends with a newline.
std::string to_table(const Comparison& comparison);
// One object, on one line; documented in docs/cli.md.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep
