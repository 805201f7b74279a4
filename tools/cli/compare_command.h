// SPDX-License-Identifier: BSD-3-Clause
// `lockstep compare`: trains a recipe in several modes and shows them side by side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "training_options.h"

namespace lockstep::cli {

struct CompareCommand {
  TrainingOptions training;
  std::vector<std::string> modes{"single", "dp", "ddp"};
  std::vector<int> ranks;
  std::optional<std::string> report;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  // `arguments` follow the program's name on the command line; the report shows them.
  int run(const std::vector<std::string>& arguments) const;
};

}  // namespace lockstep::cli
