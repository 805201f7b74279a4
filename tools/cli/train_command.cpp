// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep train`, and the choice between training here and starting ranks.
#include "tools/cli/train_command.h"

#include <cstdint>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/rendezvous/elastic_job.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/train/terminal_log.h"
#include "lockstep/train/trace.h"
#include "tools/cli/ending_signals.h"
#include "tools/cli/help.h"
#include "tools/cli/option_values.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"
#include "tools/recipes/launch_plan.h"
#include "tools/recipes/local_training.h"
#include "tools/recipes/train.h"
#include "tools/report/page.h"
#include "tools/report/training_report.h"

namespace lockstep::cli {
namespace {

// A signal that ends the process removes the bar, too, during EndingSignals.
struct ErasedTerminalLog {
  explicit ErasedTerminalLog(OutputStream stream) : log(stream) {
    erase_at_end(stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO);
  }
  ~ErasedTerminalLog() { erase_at_end(-1); }
  ErasedTerminalLog(const ErasedTerminalLog&) = delete;
  ErasedTerminalLog& operator=(const ErasedTerminalLog&) = delete;

  TerminalLog log;
};

}  // namespace

void TrainCommand::describe(::CLI::App& app) {
  flags.describe(app);
  RecipeOptions& options = flags.options;
  app.option_defaults()->group("Ranks and devices");
  const auto set_mode = [&](const std::string& name) { options.trainer.mode = find_mode(name); };
  choose_from(
      app.add_option_function<std::string>(
          "--mode", set_mode,
          "Mode: single (one process), dp (one process, several copies of the net) or ddp (several "
          "processes) (default: ddp if there is more than one rank, else single)"),
      {"single", "dp", "ddp"})
      ->type_name("MODE");
  add_number(app, "--ranks", ranks, kCounts,
             "Number of ranks, or of replicas for dp (default: 1; with --mode dp or ddp one per "
             "GPU, or per core if there is no GPU)");
  app.option_defaults()->group("Output");
  add_path(app, "--save", options.save_file,
           "File for the trained net of rank 0: in safetensors format if its name ends with "
           ".safetensors, as torch::save writes it if with .pt, .pth, .bin or without an extension")
      ->type_name("FILE");
  app.option_defaults()->group("Checkpoints");
  auto* const folder =
      app.add_option_function<std::string>(
             "--checkpoint-dir", [this](const std::string& path) { checkpoints().folder = path; },
             "Folder for the state of training, saved after each epoch while training continues")
          ->type_name("DIR");
  add_number_to<std::int64_t>(
      app, "--checkpoint-every", [this](std::int64_t steps) { checkpoints().every_steps = steps; },
      kStepIntervals, "Number of steps between two further saves (default: none within an epoch)")
      ->needs(folder)
      ->type_name("STEPS");
  app.add_flag_callback(
         "--resume", [this] { checkpoints().resume = true; },
         "Resumption from the newest checkpoint in the folder, if there is one (default: a folder "
         "with checkpoints is refused)")
      ->needs(folder);
  app.option_defaults()->group("Output");
  add_path(app, "--metrics", options.metrics_file,
           "File to append a line of JSON to, every 10 steps and after each epoch")
      ->type_name("FILE");
  add_path(app, "--tensorboard", options.tensorboard_folder,
           "Folder for a TensorBoard event file of loss, learning rate, speed and accuracy")
      ->type_name("DIR");
  add_path(app, "--trace", options.trace_file,
           fmt::format("File for a timeline of every rank, for ui.perfetto.dev or "
                       "chrome://tracing: the first {} spans of each rank, and the number of the "
                       "others",
                       TraceOptions().spans))
      ->type_name("FILE.json");
  add_path(app, "--report", report,
           "File for a page with charts of loss, accuracy, speed, memory and the time of a step on "
           "each rank")
      ->type_name("FILE.html");
  app.option_defaults()->group("Training");
  choose_from(
      app.add_option_function<std::string>(
          "--curriculum",
          [this](const std::string& name) { curriculum().pacing = find_pacing(name); },
          "Growth of the pool of images, which are visited from easy to hard by the loss of a "
          "small linear classifier: linear in the step, as a root, or in steps (default: all "
          "images, shuffled)"),
      {"linear", "root", "steps"})
      ->type_name("PACING");
  add_number_to<double>(
      app, "--curriculum-start", [this](double share) { curriculum().start_share = share; },
      kStartShares,
      fmt::format("Share of the images in the first step, the easiest (default: {})",
                  Curriculum().start_share))
      ->needs("--curriculum")
      ->type_name("SHARE");
  add_number_to<std::int64_t>(
      app, "--curriculum-steps", [this](std::int64_t step) { curriculum().full_at_step = step; },
      kCurriculumSteps,
      "Number of steps before the first that draws from all images (default: half of all steps)")
      ->needs("--curriculum");
  add_number(app, "--microbatches", options.trainer.microbatches, kMicrobatches,
             "Number of microbatches of which the batch of a step consists, so that the trained "
             "net has the same bits on any number of ranks up to this one; --batch-size then "
             "counts the samples of a microbatch (default: batches are not divided)");
  app.add_flag("--balance-load", options.trainer.balance_load,
               "Microbatches for each rank by its speed, which it measures, so that a slow rank "
               "holds up the others less; the trained net stays the same (default: as many for "
               "each rank)")
      ->needs("--microbatches");
  const auto set_amp = [&](const std::string& name) { options.trainer.amp = find_amp(name); };
  choose_from(
      app.add_option_function<std::string>(
          "--amp", set_amp,
          "Type in which layers compute (automatic mixed precision), bf16 or fp16; parameters and "
          "gradients stay in float (default: float)"),
      {"bf16", "fp16"})
      ->type_name("TYPE");
  app.add_flag("--recompute", options.recompute,
               "Second computation of each block's forward in backward, which needs less memory "
               "and more time; for resnet18 and char-transformer (default: off)");
  app.option_defaults()->group("Checks");
  app.add_flag(
      "--check-finite", options.trainer.check_finite,
      "Check for infinite and NaN gradients, which ends training and names the parameter and "
      "the rank (default: off)");
  add_number(app, "--check-in-sync", options.trainer.check_in_sync, kStepIntervals,
             "Number of steps after which training stops unless all ranks have the same "
             "parameters, buffers and gradients, bit for bit; for ddp (default: never)");
  add_examples(app, {{"lockstep train mlp --ranks 2 --save net.pt",
                      "Train on two ranks of this machine, and save the net"},
                     {"lockstep train cnn --checkpoint-dir checkpoints --resume",
                      "Start a run, or continue it where it stopped"}});
  // Set by `lockstep compare`, which scales all its runs alike.
  add_number(app, "--lr-scale", options.trainer.lr_scale, kLearningRateScales, "")->group("");
}

Curriculum& TrainCommand::curriculum() {
  auto& curriculum = flags.options.curriculum;
  return curriculum ? *curriculum : curriculum.emplace();
}

TrainerCheckpointOptions& TrainCommand::checkpoints() {
  auto& checkpoints = flags.options.trainer.checkpoints;
  return checkpoints ? *checkpoints : checkpoints.emplace();
}

int TrainCommand::run(const std::vector<std::string>& arguments) const {
  const Recipe recipe = find_recipe(flags.recipe);
  const auto member = membership_in_environment();
  RecipeOptions options = flags.options;
  LaunchRequest request{
      .mode = options.trainer.mode, .ranks = ranks, .default_ranks = available_cores()};
  if (member) request.world_size = member->world_size;
  if (ElasticJob::of_this_process()) {
    // Its ranks change: a single one trains as one of several, too.
    if (!member) request.world_size = 1;
    if (request.mode == TrainingMode::automatic) request.mode = TrainingMode::distributed;
  }
  const int gpus = flags.device == "cpu" ? 0 : usable_gpus();
  if (gpus > 0) request.default_ranks = gpus;
  const LaunchPlan plan = plan_launch(request);

  const int parts = plan.ranks * plan.replicas;
  options.trainer.mode = plan.mode;
  options.trainer.data_parallel.replicas = plan.replicas;
  double& scale = options.trainer.lr_scale;
  if (flags.scale_learning_rate && scale == 1) {
    const std::int64_t microbatches = options.trainer.microbatches;
    scale = static_cast<double>(microbatches > 0 ? microbatches : parts);
  }
  if (report) options.on_course = report_writer(arguments, !member || member->rank == 0);
  check_recipe_options(recipe, options, parts);

  const int local_rank = member ? member->local_rank : 0;
  const TrainResult result = plan.start_ranks ? start_ranks(arguments, plan.ranks)
                                              : train_here(std::move(options), local_rank);
  if (member && !result.is_of_rank_0) return 0;
  if (!plan.start_ranks && started_by_local_training()) {
    hand_over(result);
    return 0;
  }
  for (const std::string& why : result.not_written) {
    print(stderr, fmt::format("lockstep train: {}\n", why));
  }
  if (flags.json) check_output(print(stdout, to_json(result) + "\n"));
  return result.not_written.empty() ? 0 : 1;
}

// UsageError if the page cannot be made or written, before training, on the rank that writes it.
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
  choose_device(flags.device, count - 1);
  for (const auto& file : {flags.options.save_file, flags.options.trace_file}) {
    if (file) check_can_write(*file);
  }
  std::vector<std::string> program{this_program()};
  program.insert(program.end(), arguments.begin(), arguments.end());
  const auto& checkpoints = flags.options.trainer.checkpoints;
  try {
    return run_local_training(
        {.program = std::move(program),
         .ranks = count,
         .output = {.stream = flags.json ? OutputStream::err : OutputStream::out}});
  } catch (const TrainingStopped& stopped) {
    if (!checkpoints) throw;
    throw TrainingStopped(stopped.signal(),
                          fmt::format("{}; {}", stopped.what(), resume_note(checkpoints->folder)));
  }
}

TrainResult TrainCommand::train_here(RecipeOptions options, int local_rank) const {
  if (options.trainer.mode == TrainingMode::data_parallel && !environment("OMP_NUM_THREADS")) {
    limit_threads(threads_for_replicas(available_cores(), options.trainer.data_parallel.replicas));
  }
  InitOptions init;
  init.backend = flags.ranks.backend;
  init.timeout = flags.ranks.timeout;
  init.device = choose_device(flags.device, local_rank);
  // `lockstep train` is meant to train alone, even on a terminal.
  if (!membership_in_environment()) init.world_size = 1;
  const auto group = init_process_group(init);
  // The process that started this one says it for all ranks.
  const auto& checkpoints = options.trainer.checkpoints;
  std::optional<EndingSignals> signals;
  if (!started_by_local_training()) {
    signals.emplace(checkpoints && group->rank() == 0 ? std::optional(checkpoints->folder)
                                                      : std::nullopt);
  }
  // A full disk costs the lines, not the run, but it counts as an error.
  int output_error = 0;
  options.on_step = launcher_progress();
  // A launcher's terminal shows the lines of several ranks.
  std::optional<ErasedTerminalLog> terminal;
  const OutputStream stream = flags.json ? OutputStream::err : OutputStream::out;
  if (!membership_in_environment() && can_show_status(stream)) {
    terminal.emplace(stream);
    options.on_step = [&](const RunSteps& run, const StepSummary& step) {
      terminal->log.step(run, step);
    };
  }
  TrainResult result =
      train(find_recipe(flags.recipe), std::move(options), group, [&](const std::string& line) {
        if (terminal) return terminal->log.line(line);
        const int error = print(flags.json ? stderr : stdout, line + "\n");
        if (error != 0 && !flags.json) output_error = error;
      });
  if (terminal && !flags.json) output_error = terminal->log.error();
  check_output(output_error);
  return result;
}

}  // namespace lockstep::cli
