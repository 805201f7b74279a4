// SPDX-License-Identifier: BSD-3-Clause
// `lockstep compare`: trains a recipe in several modes and shows them side by side.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/cli/recipe_flags.h"

namespace lockstep::cli {

struct CompareCommand {
  RecipeFlags flags;
  std::vector<std::string> modes{"single", "dp", "ddp"};
  std::vector<int> ranks;
  std::optional<std::filesystem::path> report;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  // `arguments` follow the program's name on the command line; the report shows them.
  int run(const std::vector<std::string>& arguments) const;
};

}  // namespace lockstep::cli
