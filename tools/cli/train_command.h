// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train`: trains a recipe in this process, as a rank of a launcher, or on ranks that it
// starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "training_options.h"

#include "tools/recipes/train_result.h"

namespace lockstep::cli {

struct TrainCommand {
  TrainingOptions training;
  std::optional<std::string> mode;
  std::optional<int> ranks;
  std::optional<std::string> save;
  std::optional<std::string> curriculum;
  std::optional<double> curriculum_start;
  std::optional<std::int64_t> curriculum_steps;
  std::optional<std::string> checkpoint_folder;
  std::optional<std::int64_t> checkpoint_every;
  bool resume = false;
  std::optional<std::string> metrics;
  std::optional<std::string> tensorboard;
  std::optional<std::string> trace;
  std::optional<std::string> report;
  std::optional<std::string> amp;
  bool check_finite = false;
  std::optional<std::int64_t> check_in_sync;
  // Set by `lockstep compare`, which scales all its runs alike.
  std::optional<double> learning_rate_scale;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // `arguments` follow the program's name on the command line; ranks are started with them.
  int run(const std::vector<std::string>& arguments) const;

 private:
  std::optional<Curriculum> chosen_curriculum() const;
  CourseObserver report_writer(const std::vector<std::string>& arguments, bool writes) const;
  TrainResult start_ranks(const std::vector<std::string>& arguments, int count) const;
  TrainResult train_here(TrainMode mode, const TrainOptions& options, int local_rank) const;
};

}  // namespace lockstep::cli
