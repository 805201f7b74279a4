// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep train`, and the choice between training here and starting ranks.
#include "train_command.h"

#include <algorithm>
#include <cstdio>

#include "number_option.h"
#include "print.h"
#include "terminal_log.h"
#include "this_program.h"
#include <fmt/format.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "tools/recipes/choose_device.h"
#include "tools/recipes/launch_plan.h"
#include "tools/recipes/local_training.h"
#include "tools/report/page.h"
#include "tools/report/training_report.h"

namespace lockstep::cli {

void TrainCommand::describe(::CLI::App& app) {
  training.describe(app);
  app.add_option("--mode", mode,
                 "Train in this mode: single (one process), dp (one process, several copies of the "
                 "net) or ddp (several processes); by default ddp if there is more than one rank")
      ->check(::CLI::IsMember({"single", "dp", "ddp"}))
      ->type_name("MODE");
  add_number(
      app, "--ranks", ranks, kCounts,
      "Start this many ranks, or replicas for dp; by default 1, or with --mode dp or ddp one per "
      "GPU, or per core if there is no GPU");
  app.add_option("--save", save, "Save the trained net of rank 0 to this file, as torch::save does")
      ->type_name("FILE");
  auto* const checkpoints =
      app.add_option(
             "--checkpoint-dir", checkpoint_folder,
             "Save the state of training in this folder after each epoch, while training goes on")
          ->type_name("DIR");
  add_number(app, "--checkpoint-every", checkpoint_every, kStepIntervals,
             "Also save every so many steps")
      ->needs(checkpoints)
      ->type_name("STEPS");
  app.add_flag("--resume", resume,
               "Go on from the newest checkpoint in the folder, if there is one")
      ->needs(checkpoints);
  app.add_option("--metrics", metrics,
                 "Append a line of JSON to this file every 10 steps and after each epoch")
      ->type_name("FILE");
  app.add_option(
         "--tensorboard", tensorboard,
         "Write loss, learning rate, speed and accuracy to a TensorBoard event file in this folder")
      ->type_name("DIR");
  app.add_option("--trace", trace,
                 "Write what every rank did, and when, to this file for ui.perfetto.dev or "
                 "chrome://tracing: the first 262144 spans of each rank, and how many followed")
      ->type_name("FILE.json");
  app.add_option("--report", report,
                 "Write charts of loss, speed, memory and the time of a step on each rank to this "
                 "file, as a page for any browser")
      ->type_name("FILE.html");
  app.add_option("--curriculum", curriculum,
                 "Visit images from easy to hard, by the loss of a small linear classifier; the "
                 "pool of images grows as a linear function of the step, as a root, or in steps")
      ->check(::CLI::IsMember({"linear", "root", "steps"}))
      ->type_name("PACING");
  add_number(app, "--curriculum-start", curriculum_start, kStartShares,
             "Begin with this share of the images, the easiest; by default 0.2")
      ->needs("--curriculum")
      ->type_name("SHARE");
  add_number(app, "--curriculum-steps", curriculum_steps, kCurriculumSteps,
             "Draw from all images after this many steps; by default after half of all steps")
      ->needs("--curriculum");
  app.add_option("--amp", amp,
                 "Compute layers in bf16 or fp16 (automatic mixed precision); parameters and "
                 "gradients stay in float")
      ->check(::CLI::IsMember({"bf16", "fp16"}))
      ->type_name("TYPE");
  app.add_flag(
      "--check-finite", check_finite,
      "Stop training if a gradient is infinite or NaN, and name the parameter and the rank");
  add_number(app, "--check-in-sync", check_in_sync, kStepIntervals,
             "Every N steps, stop training unless all ranks have the same parameters, "
             "buffers and gradients, bit for bit; for ddp");
  add_number(app, "--lr-scale", learning_rate_scale, kLearningRateScales, "")->group("");
}

int TrainCommand::run(const std::vector<std::string>& arguments) const {
  const Recipe recipe = find_recipe(training.recipe);
  const auto member = membership_in_environment();
  LaunchRequest request{.ranks = ranks, .default_ranks = available_cores()};
  if (member) request.world_size = member->world_size;
  if (mode) request.mode = find_mode(*mode);
  const int gpus = training.device == "cpu" ? 0 : usable_gpus();
  if (gpus > 0) request.default_ranks = gpus;
  const LaunchPlan plan = plan_launch(request);

  const int parts = plan.ranks * plan.replicas;
  TrainOptions options = training.train_options(parts);
  options.replicas = plan.replicas;
  if (learning_rate_scale) options.learning_rate_scale = *learning_rate_scale;
  if (amp) options.amp = find_amp(*amp);
  options.check_finite = check_finite;
  options.check_in_sync = check_in_sync;
  options.curriculum = chosen_curriculum();
  if (checkpoint_folder) {
    options.checkpoints = {.folder = *checkpoint_folder,
                           .every_steps = checkpoint_every.value_or(0),
                           .resume = resume};
  }
  if (metrics) options.metrics_file = *metrics;
  if (tensorboard) options.tensorboard_folder = *tensorboard;
  if (save) options.save_file = *save;
  if (trace) options.trace_file = *trace;
  if (report) options.on_course = report_writer(arguments, !member || member->rank == 0);
  check_train_options(recipe, options, parts);

  const int local_rank = member ? member->local_rank : 0;
  const TrainResult result = plan.start_ranks ? start_ranks(arguments, plan.ranks)
                                              : train_here(plan.mode, options, local_rank);
  if (member && member->rank != 0) return 0;
  if (!plan.start_ranks && started_by_local_training()) {
    hand_over(result);
    return 0;
  }
  for (const std::string& why : result.not_written) {
    print(stderr, fmt::format("lockstep train: {}\n", why));
  }
  if (training.json) check_output(print(stdout, to_json(result) + "\n"));
  return result.not_written.empty() ? 0 : 1;
}

std::optional<Curriculum> TrainCommand::chosen_curriculum() const {
  if (!curriculum) return std::nullopt;
  Curriculum chosen{.pacing = find_pacing(*curriculum), .full_at_step = curriculum_steps};
  if (curriculum_start) chosen.start_share = *curriculum_start;
  return chosen;
}

// UsageError if the page cannot be made or written: before training, on the rank that writes
// it.
CourseObserver TrainCommand::report_writer(const std::vector<std::string>& arguments,
                                           bool writes) const {
  if (!writes) return [](const TrainResult&, const std::vector<RankCourse>&) {};
  check_can_write(*report);
  std::string command = "lockstep";
  for (const std::string& argument : arguments) command += " " + argument;
  return [file = *report, command, library = read_chart_library()](
             const TrainResult& result, const std::vector<RankCourse>& ranks) {
    const std::string page = to_html(result, ranks, command, library);
    WholeFile whole(file);
    whole.write(page.data(), page.size());
    whole.commit();
  };
}

TrainResult TrainCommand::start_ranks(const std::vector<std::string>& arguments, int count) const {
  // The last rank's GPU is the first that may be missing.
  choose_device(training.device, count - 1);
  for (const auto& file : {save, trace}) {
    if (file) check_can_write(*file);
  }
  std::vector<std::string> program{this_program()};
  program.insert(program.end(), arguments.begin(), arguments.end());
  return run_local_training(
      {.program = std::move(program),
       .ranks = count,
       .output = {.stream = training.json ? OutputStream::err : OutputStream::out}});
}

TrainResult TrainCommand::train_here(TrainMode train_mode, const TrainOptions& options,
                                     int local_rank) const {
  if (train_mode == TrainMode::dp && !environment("OMP_NUM_THREADS")) {
    limit_threads(threads_for_replicas(available_cores(), options.replicas));
  }
  InitOptions init;
  init.backend = training.backend;
  init.timeout = training.timeout.value();
  init.device = choose_device(training.device, local_rank);
  // `lockstep train` is meant to train alone, even on a terminal.
  if (!membership_in_environment()) init.world_size = 1;
  const auto group = init_process_group(init);
  // A full disk costs the lines, not the run, but it counts as an error.
  int output_error = 0;
  TrainOptions shown = options;
  shown.on_step = launcher_progress();
  // A launcher's terminal shows the lines of several ranks.
  std::optional<TerminalLog> terminal;
  const OutputStream stream = training.json ? OutputStream::err : OutputStream::out;
  if (!membership_in_environment() && can_show_status(stream)) {
    terminal.emplace(stream);
    shown.on_step = [&](const StepSeen& seen) { terminal->step(seen); };
  }
  TrainResult result =
      train(find_recipe(training.recipe), train_mode, shown, group, [&](const std::string& line) {
        if (terminal) return terminal->line(line);
        const int error = print(training.json ? stderr : stdout, line + "\n");
        if (error != 0 && !training.json) output_error = error;
      });
  if (terminal && !training.json) output_error = terminal->error();
  check_output(output_error);
  return result;
}

}  // namespace lockstep::cli
