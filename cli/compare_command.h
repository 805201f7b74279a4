// SPDX-License-Identifier: BSD-3-Clause
// `lockstep compare`: trains a recipe alone and with ranks, and prints both.
#pragma once

#include "training_options.h"

namespace lockstep::cli {

struct CompareCommand {
  TrainingOptions training;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  int run() const;
};

}  // namespace lockstep::cli
