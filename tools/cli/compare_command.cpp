// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep compare`, and its output as table, JSON or page.
#include "compare_command.h"

#include <algorithm>
#include <cstdio>

#include "number_option.h"
#include "own_ranks.h"
#include "print.h"
#include "this_program.h"
#include <fmt/format.h>

#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/process/cpu.h"
#include "tools/compare/comparison.h"
#include "tools/compare/comparison_report.h"
#include "tools/recipes/choose_device.h"
#include "tools/report/page.h"

namespace lockstep::cli {

void CompareCommand::describe(::CLI::App& app) {
  training.describe(app);
  app.add_option("--modes", modes,
                 "Compare these modes, separated by commas; the first is the baseline")
      ->delimiter(',')
      ->check(::CLI::IsMember({"single", "dp", "ddp"}))
      ->capture_default_str()
      ->type_name("MODE,...");
  add_numbers(app, "--ranks", ranks, kCounts,
              "Run ddp with this many ranks and dp with this many replicas, as in 2 or 1,2,4; by "
              "default one per GPU; without GPUs one per core, but at least 2");
  app.add_option("--report", report,
                 "Write charts and figures to this file, as a page for any browser")
      ->type_name("FILE.html");
}

int CompareCommand::run(const std::vector<std::string>& arguments) const {
  const Recipe recipe = find_recipe(training.recipe);
  require_no_launcher("compare");
  const int gpus = training.device == "cpu" ? 0 : usable_gpus();
  const int cores = available_cores();
  std::vector<int> counts = ranks;
  if (counts.empty()) counts.push_back(gpus > 0 ? gpus : std::max(2, cores));
  const int most = *std::ranges::max_element(counts);
  choose_device(training.device, most - 1);
  std::string chart_library;
  if (report) {
    check_can_write(*report);
    chart_library = read_chart_library();
  }
  std::vector<TrainMode> chosen;
  for (const std::string& mode : modes) chosen.push_back(find_mode(mode));

  const Comparison comparison = compare(recipe, {.train_program = {this_program(), "train"},
                                                 .modes = std::move(chosen),
                                                 .ranks = std::move(counts),
                                                 .cores = cores,
                                                 .on_gpu = gpus > 0,
                                                 .device = training.device,
                                                 .backend = training.backend,
                                                 .timeout = training.timeout.value(),
                                                 .training = training.train_options(most)});
  // The figures come first: they must not be lost if the report cannot be written.
  const int output_error =
      print(stdout, training.json ? to_json(comparison) + "\n" : to_table(comparison));
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
