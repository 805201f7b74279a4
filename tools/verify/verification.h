// SPDX-License-Identifier: BSD-3-Clause
// Trains a recipe in microbatches in several modes and on several numbers of ranks, and compares
// the bits of the outcomes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/recipes/recipe.h"
#include "tools/recipes/recipe_options.h"

namespace lockstep {

struct VerificationOptions {
  // Starts one run; the options of `lockstep train` are appended.
  std::vector<std::string> train_program;
  std::vector<TrainingMode> modes = {TrainingMode::single, TrainingMode::data_parallel,
                                     TrainingMode::distributed};
  // The numbers of ranks of ddp and of replicas of dp.
  std::vector<int> ranks = {1, 2, 3, 4};
  std::optional<std::string> device = {};
  // The backend of the ranks of ddp.
  std::string backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // `modes` and `ranks` replace its mode and replicas; trainer.microbatches is positive.
  RecipeOptions training = {};
};

struct VerifiedRun {
  std::string mode;  // "single", "dp" or "ddp"
  int ranks = 1;     // or replicas
  std::string sha256;
};

struct Verification {
  std::string recipe;
  std::int64_t microbatches = 0;
  std::vector<VerifiedRun> rows;

  // Whether all rows have the same hash.
  bool identical() const;
};

// Starts the runs one after another, each in new processes. Their output goes to standard error.
// UsageError for modes and ranks that make fewer than two runs; other errors as from
// run_local_training.
Verification verify(const Recipe& recipe, const VerificationOptions& options);

// A table, and a line about what the bits depend on.
std::string to_table(const Verification& verification);
// One object, on one line; documented in docs/cli.md.
std::string to_json(const Verification& verification);

}  // namespace lockstep
