// SPDX-License-Identifier: BSD-3-Clause
// The options that `lockstep train` and `lockstep compare` share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "timeout_option.h"
#include <CLI/CLI.hpp>

#include "tools/recipes/train.h"

namespace lockstep::cli {

struct TrainingOptions {
  std::string recipe;
  std::optional<std::string> device;
  std::string backend = "auto";
  TimeoutOption timeout;
  std::optional<std::int64_t> epochs;
  std::optional<std::int64_t> batch_size;
  std::optional<std::int64_t> global_batch_size;
  std::optional<double> learning_rate;
  bool scale_learning_rate = false;
  std::optional<std::string> data;
  std::int64_t seed = 0;
  bool json = false;

  // Describes the options to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // The library's options. `scale` is the factor of the learning rate if --scale-lr is set.
  TrainOptions train_options(double scale) const;
};

}  // namespace lockstep::cli
