// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep verify`, and its output as table or JSON.
#include "tools/cli/verify_command.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/cli/help.h"
#include "tools/cli/option_values.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"
#include "tools/cli/rank_options.h"
#include "tools/recipes/launch_plan.h"
#include "tools/verify/verification.h"

namespace lockstep::cli {

void VerifyCommand::describe(::CLI::App& app) {
  flags.describe(app);
  app.option_defaults()->group("Ranks and devices");
  app.add_option(
         "--modes", modes,
         fmt::format("Modes to train in, separated by commas (default: {})", fmt::join(modes, ",")))
      ->delimiter(',')
      ->check(::CLI::IsMember({"single", "dp", "ddp"}))
      ->type_name("MODE,...");
  add_numbers(app, "--ranks", ranks, kCounts,
              fmt::format("Numbers of ranks for ddp and of replicas for dp, as in 2 or 1,2,4 "
                          "(default: {})",
                          fmt::join(ranks, ",")));
  app.option_defaults()->group("Training");
  add_number(app, "--microbatches", microbatches, kMicrobatches,
             "Number of microbatches of which the batch of a step consists (default: the most "
             "ranks)");
  add_examples(app, {{"lockstep verify cnn --epochs 1 --ranks 1,2,3",
                      "See that the weights do not depend on the number of ranks"}});
}

int VerifyCommand::run() const {
  const Recipe recipe = find_recipe(flags.recipe);
  require_no_launcher("verify");
  const int most = *std::ranges::max_element(ranks);
  choose_device(flags.device, most - 1);
  RecipeOptions training = flags.options;
  training.trainer.microbatches = microbatches > 0 ? microbatches : most;
  if (flags.scale_learning_rate) {
    training.trainer.lr_scale = static_cast<double>(training.trainer.microbatches);
  }
  std::vector<TrainingMode> chosen;
  for (const std::string& name : modes) chosen.push_back(find_mode(name));
  const Verification verification = verify(recipe, {.train_program = {this_program(), "train"},
                                                    .modes = std::move(chosen),
                                                    .ranks = ranks,
                                                    .device = flags.device,
                                                    .backend = flags.ranks.backend,
                                                    .timeout = flags.ranks.timeout,
                                                    .training = std::move(training)});
  check_output(print(stdout, flags.json ? to_json(verification) + "\n" : to_table(verification)));
  return verification.identical() ? 0 : 1;
}

}  // namespace lockstep::cli
