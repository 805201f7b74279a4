// SPDX-License-Identifier: BSD-3-Clause
// `lockstep verify`: trains a recipe on several numbers of ranks, and compares the bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/cli/recipe_flags.h"

namespace lockstep::cli {

struct VerifyCommand {
  RecipeFlags flags;
  std::vector<std::string> modes{"single", "dp", "ddp"};
  std::vector<int> ranks{1, 2, 3, 4};
  std::int64_t microbatches = 0;  // 0: as many as the most ranks

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  // Returns the exit code: 1 if the bits differ.
  int run() const;
};

}  // namespace lockstep::cli
