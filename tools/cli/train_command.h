// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train`: trains a recipe in this process, as a rank of a launcher, or on ranks that it
// starts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/cli/recipe_flags.h"
#include "tools/recipes/train_result.h"

namespace lockstep::cli {

struct TrainCommand {
  RecipeFlags flags;
  // The number of ranks, or of replicas for dp.
  std::optional<int> ranks;
  std::optional<std::filesystem::path> report;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // `arguments` follow the program's name on the command line; ranks are started with them.
  int run(const std::vector<std::string>& arguments) const;

 private:
  // The options as they are parsed: each of two is set by several flags.
  Curriculum& curriculum();
  TrainerCheckpointOptions& checkpoints();
  CourseObserver report_writer(const std::vector<std::string>& arguments, bool writes) const;
  TrainResult start_ranks(const std::vector<std::string>& arguments, int count) const;
  TrainResult train_here(RecipeOptions options, int local_rank) const;
};

}  // namespace lockstep::cli
