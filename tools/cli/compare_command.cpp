// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep compare`, and its output as table, JSON or page.
#include "tools/cli/compare_command.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/process/cpu.h"
#include "tools/cli/help.h"
#include "tools/cli/option_values.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"
#include "tools/cli/rank_options.h"
#include "tools/compare/comparison.h"
#include "tools/compare/comparison_output.h"
#include "tools/recipes/launch_plan.h"
#include "tools/report/page.h"

namespace lockstep::cli {

void CompareCommand::describe(::CLI::App& app) {
  flags.describe(app);
  app.option_defaults()->group("Ranks and devices");
  choose_from(
      app.add_option("--modes", modes,
                     fmt::format("Modes to compare, separated by commas; the first is the baseline "
                                 "(default: {})",
                                 fmt::join(modes, ","))),
      {"single", "dp", "ddp"})
      ->delimiter(',')
      ->type_name("MODE,...");
  add_numbers(app, "--ranks", ranks, kCounts,
              "Numbers of ranks for ddp and of replicas for dp, as in 2 or 1,2,4 (default: one per "
              "GPU; without GPUs one per core, but at least 2)");
  app.option_defaults()->group("Output");
  add_path(app, "--report", report, "File for a page of charts and figures, for any browser")
      ->type_name("FILE.html");
  add_examples(app, {{"lockstep compare mlp --ranks 2 --epochs 1",
                      "See what two ranks gain over one process"},
                     {"lockstep compare resnet18 --ranks 1,2,4 --report scaling.html",
                      "Write a page with the speedup by the number of ranks"}});
}

int CompareCommand::run(const std::vector<std::string>& arguments) const {
  const Recipe recipe = find_recipe(flags.recipe);
  require_no_launcher("compare");
  const int gpus = flags.device == "cpu" ? 0 : usable_gpus();
  const int cores = available_cores();
  std::vector<int> counts = ranks;
  if (counts.empty()) counts.push_back(gpus > 0 ? gpus : std::max(2, cores));
  const int most = *std::ranges::max_element(counts);
  choose_device(flags.device, most - 1);
  std::string chart_library;
  if (report) {
    check_can_write(*report);
    chart_library = read_chart_library();
  }
  std::vector<TrainingMode> chosen;
  for (const std::string& mode : modes) chosen.push_back(find_mode(mode));

  RecipeOptions options = flags.options;
  if (flags.scale_learning_rate) options.trainer.lr_scale = most;
  const Comparison comparison = compare(recipe, {.train_program = {this_program(), "train"},
                                                 .modes = std::move(chosen),
                                                 .ranks = std::move(counts),
                                                 .cores = cores,
                                                 .on_gpu = gpus > 0,
                                                 .device = flags.device,
                                                 .backend = flags.ranks.backend,
                                                 .timeout = flags.ranks.timeout,
                                                 .training = std::move(options)});
  // The figures come first: they must not be lost if the report cannot be written.
  const int output_error =
      print(stdout, flags.json ? to_json(comparison) + "\n" : to_table(comparison));
  if (report) {
    std::string command = "lockstep";
    for (const std::string& argument : arguments) command += " " + argument;
    const std::string page = to_html(comparison, command, chart_library);
    WholeFile file(*report);
    file.write(page.data(), page.size());
    file.commit();
  }
  check_output(output_error);
  return 0;
}

}  // namespace lockstep::cli
