// SPDX-License-Identifier: BSD-3-Clause
// The options that `lockstep train` and `lockstep compare` share, and `--set key=value`, another
// way to write those of a recipe, for programs that tune them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/cli/rank_options.h"
#include "tools/recipes/recipe_options.h"

namespace lockstep::cli {

struct RecipeFlags {
  std::string recipe;
  std::optional<std::string> device;
  RankOptions ranks;
  bool scale_learning_rate = false;
  bool json = false;
  // The parser writes each option of the training here.
  RecipeOptions options;

  // Describes the options to the parser. The object must outlive it.
  void describe(::CLI::App& app);
};

// Describes --set to the parser of `train` or `compare`, for --help.
void describe_settings(::CLI::App& app);

// Returns the arguments with each `--set lr=0.1` written as `--lr=0.1`, so that the option itself
// checks the value. A key may have underscores. UsageError for a key that is not a recipe's option
// of this command, listing those, and for a setting without a value. `app` has described all its
// options.
std::vector<std::string> expand_settings(const std::vector<std::string>& arguments,
                                         const ::CLI::App& app);

}  // namespace lockstep::cli
