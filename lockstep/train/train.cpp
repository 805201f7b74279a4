// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/idx_dataset.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/batch_size.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/save_model.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Log = std::function<void(const std::string&)>;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t steps_per_line = 100;
constexpr const char* default_folder = "/usr/share/datasets/fashion-mnist";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The state of the loop over the epochs.
class Loop {
 public:
  Loop(const Recipe& recipe, MemoryLoader loader, std::int64_t steps_per_epoch,
       const LearningRateSchedule& schedule, torch::optim::Optimizer& optimizer, Forward forward,
       ProcessGroup& group, Log log)
      : recipe_(recipe),
        loader_(std::move(loader)),
        steps_per_epoch_(steps_per_epoch),
        schedule_(schedule),
        optimizer_(optimizer),
        forward_(std::move(forward)),
        group_(group),
        log_(std::move(log)) {}

  struct Epoch {
    double loss;
    double seconds;
  };

  // label is what lines of progress begin with.
  Epoch run_epoch(const std::string& label) {
    const auto start = Clock::now();
    if (step_ == 0) line_start_ = start;
    at::Tensor loss_sum =
        torch::zeros({}, torch::TensorOptions(torch::kDouble).device(group_.device()));
    std::int64_t samples = 0;
    std::int64_t step = 0;
    for (auto& batch : loader_) {
      const at::Tensor loss = run_step(batch);
      samples += batch.target.size(0);
      loss_sum.add_(loss, batch.target.size(0));
      ++step;
      if (step_ % steps_per_line != 0) continue;
      log_(fmt::format("{}, step {}/{}: loss {:.4f}, {:.3f} ms a batch", label, step,
                       steps_per_epoch_, loss.item<double>(),
                       seconds_since(line_start_) * 1000 / steps_per_line));
      line_start_ = Clock::now();
    }
    // item() waits for what is under way on a GPU.
    const double sum = loss_sum.item<double>();
    return agree(sum, samples, seconds_since(start));
  }

 private:
  at::Tensor run_step(const MemoryLoader::Batch& batch) {
    // A schedule that is flat costs nothing, and leaves the rate to whoever set it.
    if (schedule_.scale != 1) set_learning_rate(learning_rate_at(schedule_, step_));
    ++step_;
    optimizer_.zero_grad();
    at::Tensor loss = recipe_.loss(forward_(batch.data), batch.target);
    loss.backward();
    optimizer_.step();
    return loss.detach();
  }

  void set_learning_rate(double rate) {
    for (auto& parameters : optimizer_.param_groups()) parameters.options().set_lr(rate);
  }

  // The mean loss over the samples of all ranks, and the slowest rank's time.
  Epoch agree(double loss_sum, std::int64_t samples, double seconds) {
    const auto type = torch::TensorOptions(torch::kDouble);
    at::Tensor sums =
        torch::tensor({loss_sum, static_cast<double>(samples)}, type).to(group_.device());
    at::Tensor time = torch::tensor({seconds}, type).to(group_.device());
    group_.all_reduce(sums).wait();
    group_.all_reduce(time, {.op = ReduceOp::max}).wait();
    sums = sums.cpu();
    return {sums[0].item<double>() / sums[1].item<double>(), time.item<double>()};
  }

  const Recipe& recipe_;
  MemoryLoader loader_;
  std::int64_t steps_per_epoch_;
  LearningRateSchedule schedule_;
  torch::optim::Optimizer& optimizer_;
  Forward forward_;
  ProcessGroup& group_;
  Log log_;
  std::int64_t step_ = 0;  // over all epochs
  Clock::time_point line_start_;
};

std::int64_t count_parameters(const torch::nn::Sequential& net) {
  std::int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  return count;
}

// What the training starts from, as the result reports it.
TrainResult describe(const Recipe& recipe, TrainMode mode, const TrainOptions& options,
                     const ProcessGroup& group) {
  const auto batch = resolve_batch_sizes(options.batch_size, options.global_batch_size,
                                         recipe.batch_size, group.size());
  TrainResult result;
  result.recipe = recipe.name;
  result.mode = name(mode);
  result.ranks = group.size();
  result.threads = at::get_num_threads();
  result.device = group.device().str();
  result.seed = options.seed;
  result.batch_size = batch.rank;
  result.global_batch_size = batch.global;
  result.learning_rate = options.learning_rate.value_or(recipe.learning_rate);
  result.learning_rate_scale = options.learning_rate_scale;
  result.epochs = options.epochs.value_or(recipe.epochs);
  return result;
}

void log_start(const TrainResult& start, const TrainingData& data, const torch::nn::Sequential& net,
               const Log& log) {
  log(fmt::format(
      "{}: {} parameters, {} samples, {} rank{} with {} thread{} on {}, batches of {} a rank, {} "
      "in all, learning rate {:g}{}",
      start.recipe, count_parameters(net), data.inputs.size(0), start.ranks,
      start.ranks == 1 ? "" : "s", start.threads, start.threads == 1 ? "" : "s", start.device,
      start.batch_size, start.global_batch_size, start.learning_rate,
      start.learning_rate_scale == 1 ? ""
                                     : fmt::format(" scaled by {:g}", start.learning_rate_scale)));
}

void log_end(const TrainResult& result, const Log& log) {
  if (result.accuracy) log(fmt::format("test accuracy {:.2f} %", *result.accuracy * 100));
  if (result.weight) {
    log(fmt::format("learned weight {:.2f}, bias {:.2f}", *result.weight, *result.bias));
  }
}

void measure(TrainResult& result, torch::nn::Sequential& net, const TrainingData& data,
             ProcessGroup& group) {
  if (data.test_inputs.defined()) {
    result.accuracy = measure_accuracy(net, data.test_inputs, data.test_targets, group);
    return;
  }
  const auto parameters = net->parameters();
  result.weight = parameters.at(0).item<double>();
  result.bias = parameters.at(1).item<double>();
}

}  // namespace

std::string_view name(TrainMode mode) {
  return mode == TrainMode::single ? "single" : "ddp";
}

void check_train_options(const Recipe& recipe, const TrainOptions& options, int ranks) {
  resolve_batch_sizes(options.batch_size, options.global_batch_size, recipe.batch_size, ranks);
  if (options.epochs && *options.epochs < 1) {
    throw UsageError(fmt::format("{} epochs train nothing; give at least 1", *options.epochs));
  }
  if (options.learning_rate &&
      !(*options.learning_rate > 0 && std::isfinite(*options.learning_rate))) {
    throw UsageError(fmt::format("the learning rate {} is not positive; give one such as {:g}",
                                 *options.learning_rate, recipe.learning_rate));
  }
  if (options.data_folder && !recipe.reads_folder) {
    throw UsageError(fmt::format("recipe {} makes its own data; leave out the data folder {}",
                                 recipe.name, options.data_folder->string()));
  }
  if (recipe.reads_folder) require_data_folder(options.data_folder.value_or(default_folder));
  if (options.save_file) check_can_save(*options.save_file);
}

TrainResult train(const Recipe& recipe, TrainMode mode, const TrainOptions& options,
                  const std::shared_ptr<ProcessGroup>& group, const Log& log) {
  if (mode == TrainMode::single && group->size() != 1) {
    throw UsageError(fmt::format("rank {} of {}: a single training is of one rank; train with ddp",
                                 group->rank(), group->size()));
  }
  check_train_options(recipe, options, group->size());
  const Log rank_0_log = group->rank() == 0 ? log : [](const std::string&) {};
  TrainResult result = describe(recipe, mode, options, *group);
  const auto data = recipe.load(options.data_folder.value_or(default_folder),
                                static_cast<std::uint64_t>(options.seed), *group);

  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  auto net = recipe.make_net();
  net->to(group->device());
  auto optimizer = recipe.make_optimizer(net->parameters(), result.learning_rate);
  std::optional<DistributedDataParallel<torch::nn::Sequential>> model;
  if (mode == TrainMode::ddp) model.emplace(net, group);
  Forward forward = [&](const at::Tensor& x) { return model ? (*model)(x) : net->forward(x); };
  log_start(result, data, net, rank_0_log);

  const auto size = static_cast<std::size_t>(data.inputs.size(0));
  DistributedSampler sampler(size, *group, {.seed = options.seed});
  const auto batch = static_cast<std::size_t>(result.batch_size);
  const auto steps = static_cast<std::int64_t>((sampler.size() + batch - 1) / batch);
  Loop loop(recipe,
            MemoryLoader(data.inputs, data.targets, sampler,
                         {.batch_size = batch, .device = group->device()}),
            steps,
            {.base = result.learning_rate,
             .scale = result.learning_rate_scale,
             .steps = steps * result.epochs},
            *optimizer, forward, *group, rank_0_log);
  std::vector<double> seconds;
  for (std::int64_t epoch = 0; epoch < result.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    const std::string label = fmt::format("epoch {}/{}", epoch + 1, result.epochs);
    const auto done = loop.run_epoch(label);
    rank_0_log(fmt::format("{}: mean loss {:.4f}, {:.2f} s", label, done.loss, done.seconds));
    result.loss = done.loss;
    seconds.push_back(done.seconds);
  }
  result.seconds = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  result.seconds_per_epoch = median(seconds);
  result.samples_per_second = static_cast<double>(size) / result.seconds_per_epoch;

  measure(result, net, data, *group);
  log_end(result, rank_0_log);
  if (options.save_file && group->rank() == 0) save_model(net.ptr(), *options.save_file);
  return result;
}

}  // namespace lockstep
