// SPDX-License-Identifier: BSD-3-Clause
#include "compare_command.h"

#include <algorithm>
#include <cstdio>

#include "own_ranks.h"
#include "print.h"
#include "this_program.h"
#include <fmt/format.h>

#include "lockstep/core/cpu.h"
#include "lockstep/core/error.h"
#include "lockstep/train/choose_device.h"
#include "lockstep/train/comparison.h"

namespace lockstep::cli {

void CompareCommand::describe(::CLI::App& app) {
  training.describe(app);
}

int CompareCommand::run() const {
  const Recipe recipe = find_recipe(training.recipe);
  require_no_launcher("compare");
  const int gpus = training.device == "cpu" ? 0 : usable_gpus();
  const int cores = available_cores();
  const int ranks = training.ranks.value_or(gpus > 0 ? gpus : std::max(2, cores));
  if (ranks < 1) throw UsageError(fmt::format("--ranks {}: give at least 1", ranks));
  choose_device(training.device, ranks - 1);

  const Comparison comparison = compare(recipe, {.train_program = {this_program(), "train"},
                                                 .ranks = ranks,
                                                 .cores = cores,
                                                 .on_gpu = gpus > 0,
                                                 .device = training.device,
                                                 .training = training.train_options(ranks)});
  check_output(print(stdout, training.json ? to_json(comparison) + "\n" : to_table(comparison)));
  return 0;
}

}  // namespace lockstep::cli
