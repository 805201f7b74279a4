// SPDX-License-Identifier: BSD-3-Clause
// Sets up data, net and loop, and fills in the result.
#include "tools/recipes/train.h"

#include <numbers>
#include <utility>
#include <variant>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/state_sha256.h"
#include "lockstep/comm/on_rank_0.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/rendezvous/elastic_job.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/trace.h"
#include "tools/nets/named_sequential.h"
#include "tools/recipes/curriculum.h"
#include "tools/recipes/metrics_writer.h"
#include "tools/recipes/recipe_data.h"
#include "tools/recipes/recipe_trainer.h"
#include "tools/recipes/run_observer.h"
#include "tools/recipes/save_model.h"

namespace lockstep {
namespace {

using Log = Progress::Log;

double bits(double nats) {
  return nats / std::numbers::ln2;
}

std::int64_t count_parameters(const torch::nn::Sequential& net) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : distinct_parameters(*net)) count += parameter.numel();
  return count;
}

TrainingData load(const Recipe& recipe, const RecipeOptions& options, ProcessGroup& group) {
  constexpr std::int64_t kImageSize = 224;
  const std::filesystem::path path = data_path(recipe, options);
  if (reads_image_files(recipe, options)) {
    return load_image_files(path, options.image_size.value_or(kImageSize), group);
  }
  return recipe.load(path, static_cast<std::uint64_t>(options.seed), group);
}

torch::nn::Sequential make_net(const Recipe& recipe, const TrainingData& data) {
  if (!data.files) return recipe.make_net();
  return recipe.make_color_net(static_cast<std::int64_t>(data.files->train.classes().size()));
}

bool has_replicas(const RecipeOptions& options) {
  return options.trainer.mode == TrainingMode::data_parallel;
}

// The number of ranks or replicas.
int computing_parts(const RecipeOptions& options, const ProcessGroup& group) {
  return has_replicas(options) ? options.trainer.data_parallel.replicas : group.size();
}

// The number of parts into which a batch is divided.
int parts(const RecipeOptions& options, const ProcessGroup& group) {
  const std::int64_t microbatches = options.trainer.microbatches;
  return microbatches > 0 ? static_cast<int>(microbatches) : computing_parts(options, group);
}

// Returns a result with everything that is known before training.
TrainResult describe(const Recipe& recipe, const RecipeOptions& options,
                     const ProcessGroup& group) {
  const auto batch = resolve_batch_sizes(options.batch_size, options.global_batch_size,
                                         recipe.batch_size, parts(options, group));
  TrainResult result;
  result.recipe = recipe.name;
  result.mode = mode_name(options.trainer.mode);
  result.ranks = group.size();
  result.replicas = has_replicas(options) ? options.trainer.data_parallel.replicas : 1;
  result.threads = options.trainer.microbatches > 0 ? 1 : at::get_num_threads();
  result.device = group.device().str();
  result.seed = options.seed;
  result.batch_size = batch.rank;
  result.global_batch_size = batch.global;
  result.microbatches = options.trainer.microbatches;
  result.learning_rate = options.learning_rate.value_or(recipe.learning_rate);
  result.learning_rate_scale = options.trainer.lr_scale;
  result.epochs = options.epochs.value_or(recipe.epochs);
  if (options.trainer.amp) result.amp = amp_name(*options.trainer.amp);
  return result;
}

// `may_resume`: a checkpoint's learning rate then overrides the start's.
void log_start(const TrainResult& start, const TrainingData& data, const torch::nn::Sequential& net,
               const ProcessGroup& group, bool may_resume, const Log& log) {
  log(fmt::format(
      "{}: {} parameters, {} samples, {} rank{}{} with {} thread{} on {}{}, {}batches of {}, {} in "
      "all, learning rate {:g}{}{}{}",
      start.recipe, count_parameters(net), data.size(), start.ranks, start.ranks == 1 ? "" : "s",
      start.replicas == 1 ? "" : fmt::format(" of {} replicas", start.replicas), start.threads,
      start.threads == 1 ? "" : "s", start.device, start.amp.empty() ? "" : " in " + start.amp,
      start.microbatches > 0 ? "micro" : "", start.batch_size, start.global_batch_size,
      start.learning_rate,
      start.learning_rate_scale == 1 ? ""
                                     : fmt::format(" scaled by {:g}", start.learning_rate_scale),
      may_resume ? " (or the checkpoint's)" : "",
      group.size() == 1 ? "" : fmt::format(", over {} ({})", group.backend(), group.why())));
}

void log_end(const TrainResult& result, bool has_trained, const Log& log) {
  if (const auto note = overload(result.core_wait); !note.empty()) log(note);
  if (result.bits_per_character) {
    const double tested = result.test_bits_per_character.value_or(0);
    const std::string bits = has_trained ? fmt::format("{:.2f} bits per character, {:.2f}",
                                                       *result.bits_per_character, tested)
                                         : fmt::format("{:.2f} bits per character", tested);
    log(fmt::format("{} on the test text, where {:.2f} % of the next characters are right", bits,
                    result.accuracy.value_or(0) * 100));
  } else if (result.accuracy) {
    log(fmt::format("test accuracy {:.2f} %", *result.accuracy * 100));
  }
  if (result.weight) {
    log(fmt::format("learned weight {:.2f}, bias {:.2f}", *result.weight, *result.bias));
  }
}

// Evaluates the test set, of which there must be one. `loading` is as in training. Returns the mean
// loss over its samples.
double measure(TrainResult& result, const Recipe& recipe, torch::nn::Sequential& net,
               const TrainingData& data, DataLoaderOptions loading, ProcessGroup& group) {
  constexpr std::size_t kBatchOfRows = 500;
  if (!data.files) loading.batch_size = kBatchOfRows;
  const DistributedSampler sampler(static_cast<std::size_t>(data.test_size()), group,
                                   {.shuffle = false});
  RecipeLoader loader = test_loader(data, sampler, loading);
  // Right predictions, predictions, and the sum of the samples' losses.
  const auto sums = [&](const at::Tensor& output, const at::Tensor& target) {
    const auto right = output.argmax(-1).eq(target).sum().item<double>();
    const double losses = recipe.loss(output, target).item<double>();
    return torch::tensor(
        {right, static_cast<double>(target.numel()), losses * static_cast<double>(target.size(0))},
        at::kDouble);
  };
  const Evaluation tested = std::visit(
      [&](auto& batches) { return evaluate(net, batches, sampler, group, sums); }, loader);
  result.accuracy = tested.sums[0] / tested.sums[1];
  if (recipe.data == RecipeData::text) result.test_bits_per_character = bits(tested.mean(2));
  return tested.mean(2);
}

void note_learned(TrainResult& result, const Recipe& recipe, const torch::nn::Module& net) {
  if (recipe.data == RecipeData::text) result.bits_per_character = bits(result.loss);
  if (!recipe.is_line) return;
  const auto parameters = net.parameters();
  result.weight = parameters.at(0).item<double>();
  result.bias = parameters.at(1).item<double>();
}

// Returns the peak memory of each device of this rank, in bytes; empty if one is unknown.
std::vector<std::int64_t> peaks(const TrainResult& result, at::Device device) {
  if (device.is_cpu()) return {peak_memory()};
  std::vector<std::int64_t> peaks;
  for (int i = 0; i < result.replicas; ++i) {
    const auto peak = libtorch::peak_memory(
        at::Device(device.type(), static_cast<at::DeviceIndex>(device.index() + i)));
    if (!peak) return {};
    peaks.push_back(*peak);
  }
  return peaks;
}

void measure_memory(TrainResult& result, ProcessGroup& group) {
  const auto own = peaks(result, group.device());
  if (own.empty()) return;
  const at::Tensor all = torch::tensor(own, torch::kLong).sum();
  const at::Tensor fullest = torch::tensor(own, torch::kLong).max();
  group.all_reduce(all).wait();
  group.all_reduce(fullest, ReduceOp::max).wait();
  result.peak_mb = all.item<double>() / 1e6;
  result.fullest_peak_mb = fullest.item<double>() / 1e6;
}

void measure_core_wait(TrainResult& result, const CoreWait& wait, ProcessGroup& group) {
  const auto own = wait.share();
  const at::Tensor greatest = torch::tensor({own.value_or(-1)}, at::kDouble);
  group.all_reduce(greatest, ReduceOp::max).wait();
  if (const auto share = greatest.item<double>(); share >= 0) result.core_wait = share;
}

// Collective. Whether it is so on a rank. One that has joined an elastic job late has seen less of
// it than the others.
bool on_any_rank(bool is_so, ProcessGroup& group) {
  const at::Tensor found = torch::tensor({is_so ? 1 : 0}, torch::kInt);
  group.all_reduce(found, ReduceOp::max).wait();
  return found.item<int>() != 0;
}

void refuse_records_of_elastic_jobs(const RecipeOptions& options, const ProcessGroup& group) {
  const std::pair<bool, const char*> records[] = {
      {options.metrics_file.has_value(), "--metrics"},
      {options.tensorboard_folder.has_value(), "--tensorboard"},
      {options.trace_file.has_value(), "--trace"},
      {static_cast<bool>(options.on_course), "--report"}};
  for (const auto& [wanted, option] : records) {
    if (!wanted) continue;
    throw UsageError(group.context("train"),
                     fmt::format("{} follows the ranks from the start to the end, and those of an "
                                 "elastic job change",
                                 option),
                     "leave it out, or start the job without --elastic");
  }
}

// Calls a function that writes a file.
void note_unwritten(TrainResult& result, const std::function<void()>& write) {
  try {
    write();
  } catch (const UsageError& error) {
    result.not_written.emplace_back(error.what());
  } catch (const BackendError& error) {
    result.not_written.emplace_back(error.what());
  }
}

}  // namespace

TrainResult train(const Recipe& recipe, RecipeOptions options,
                  const std::shared_ptr<ProcessGroup>& group, const Log& log) {
  TrainingMode& mode = options.trainer.mode;
  const auto job = ElasticJob::of_this_process();
  if (mode == TrainingMode::automatic) {
    mode = group->size() > 1 || job ? TrainingMode::distributed : TrainingMode::single;
  }
  if (job) refuse_records_of_elastic_jobs(options, *group);
  if (mode != TrainingMode::distributed && group->size() != 1) {
    throw UsageError(group->context("train"),
                     fmt::format("training in mode {} takes one rank", mode_name(mode)),
                     "use mode ddp");
  }
  if (has_replicas(options) && options.trainer.data_parallel.replicas < 1) {
    throw UsageError(fmt::format("{} replicas cannot train; give at least 1",
                                 options.trainer.data_parallel.replicas));
  }
  check_recipe_options(recipe, options, computing_parts(options, *group));
  if (options.save_file) on_rank_0(*group, [&] { check_can_write(*options.save_file); });
  const bool keeps_metrics = options.metrics_file || options.tensorboard_folder;
  std::optional<MetricsWriter> metrics;
  if (keeps_metrics) {
    on_rank_0(*group, [&] {
      metrics.emplace(options.metrics_file, options.tensorboard_folder, group->device());
    });
  }
  std::optional<Trace> trace;
  if (options.trace_file) trace.emplace(*options.trace_file, group);
  std::optional<CourseRecorder> course;
  if (options.on_course) course.emplace(*group);
  const Log no_log = [](const std::string&) {};
  // A newcomer is alone until it trains.
  const Log first_log = group->rank() == 0 && !(job && job->in_lobby()) ? log : no_log;
  TrainResult result = describe(recipe, options, *group);
  const TrainingData data = load(recipe, options, *group);

  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  auto net = make_net(recipe, data);
  if (options.recompute) nets::recompute_blocks(*net);
  net->to(group->device());
  auto made_sampler = make_sampler(data, options.curriculum, options.seed, result.global_batch_size,
                                   result.epochs, *group);
  EpochSampler& sampler = *made_sampler;  // which the loader owns from now on
  const bool in_microbatches = result.microbatches > 0;
  const auto batch = static_cast<std::size_t>(
      in_microbatches ? result.batch_size : result.batch_size * result.replicas);
  const std::int64_t steps =
      in_microbatches ? (data.size() + result.global_batch_size - 1) / result.global_batch_size
                      : static_cast<std::int64_t>((sampler.size() + batch - 1) / batch);
  DataLoaderOptions loading{.batch_size = batch, .device = group->device(), .seed = options.seed};
  if (options.workers) loading.workers = *options.workers;
  RecipeLoader loader = training_loader(data, std::move(made_sampler), loading);
  RecipeTrainer model(recipe, net, options, data, result, group, log);
  const auto& checkpoints = options.trainer.checkpoints;
  log_start(result, data, net, *group, checkpoints && checkpoints->resume, first_log);

  RunObserver observer(result, steps, model,
                       {.metrics = metrics ? &*metrics : nullptr,
                        .course = course ? &*course : nullptr,
                        .on_step = group->rank() == 0 ? options.on_step : nullptr});
  double test_loss = 0;
  FitOptions fit{
      .sampler = &sampler,
      .resumed =
          [&](std::int64_t after) {
            if (metrics) metrics->resume_after(after);
          },
      .begin_epoch =
          [&](std::int64_t) {
            model.check_statistics();
            observer.begin_epoch();
          },
      .after_step = [&](const StepSummary& step) { observer.step(step); },
      .end_epoch =
          [&](const EpochSummary& epoch) {
            observer.end_epoch(epoch);
            if (!course || !epoch.evaluation) return;
            course->evaluated(
                {.epoch = epoch.epoch + 1, .loss = test_loss, .accuracy = *epoch.evaluation});
          }};
  const bool evaluates =
      (keeps_metrics || course || options.trainer.checkpoints) && data.test_size() > 0;
  if (evaluates) {
    fit.evaluate = [&] {
      observer.end_steps();
      test_loss = measure(result, recipe, net, data, loading, model.group());
      return *result.accuracy;
    };
  }
  const auto save = [&] {
    if (!options.save_file || model.group().rank() != 0) return;
    const TracedSpan span("checkpoint");
    save_model(net.ptr(), *options.save_file, data.statistics);
  };
  const CoreWait wait;
  std::vector<EpochSummary> epochs;
  try {
    const auto loss = [&](auto& net_in_mode, auto& samples) {
      return recipe.loss(net_in_mode(samples.data), samples.target);
    };
    epochs =
        std::visit([&](auto& batches) { return model.trainer().fit(batches, loss, fit); }, loader);
  } catch (const BackendError&) {
    if (observer.has_ended()) save();  // the last checkpoint could not be written
    throw;
  }
  observer.finish(data.size());
  ProcessGroup& ranks = model.group();
  const Log last_log = ranks.rank() == 0 ? log : no_log;
  const bool has_trained = on_any_rank(!epochs.empty(), ranks);
  result.ranks = ranks.size();
  result.is_of_rank_0 = ranks.rank() == 0;
  measure_memory(result, ranks);
  // A run without steps only reads its data, for which more threads than cores are no fault.
  if (has_trained) measure_core_wait(result, wait, ranks);
  if (data.test_size() > 0 && on_any_rank(!result.accuracy, ranks)) {
    const TracedSpan span("evaluation");
    measure(result, recipe, net, data, loading, ranks);
  }
  note_learned(result, recipe, *net);
  if (in_microbatches) {
    torch::optim::Optimizer& optimizer = model.trainer().optimizer();
    auto* const shards = dynamic_cast<optim::ShardedOptimizer*>(&optimizer);
    const bool is_divided = shards != nullptr && shards->is_sharded();
    if (is_divided) shards->consolidate_state();
    if (!is_divided || result.is_of_rank_0) result.sha256 = state_sha256(*net, optimizer);
    last_log("SHA-256 of weights, buffers and optimizer state: " + result.sha256);
  }
  log_end(result, has_trained, last_log);
  save();
  // Records for readers come last, so that an error costs nothing else.
  if (metrics) result.not_written = metrics->errors();
  if (trace) note_unwritten(result, [&] { trace->finish(); });
  if (course) {
    const std::vector<RankCourse> ranks = course->of_all_ranks();
    if (group->rank() == 0) note_unwritten(result, [&] { options.on_course(result, ranks); });
  }
  return result;
}

}  // namespace lockstep
