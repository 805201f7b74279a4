// SPDX-License-Identifier: BSD-3-Clause
// Runs the steps of an epoch, and combines losses and times over the ranks.
#include "tools/recipes/training_loop.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <torch/utils.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/check_in_sync.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/train/mean_over_ranks.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// The losses of an epoch, summed over the samples of each of a few sections.
class LossSums {
 public:
  LossSums(std::int64_t steps, at::Device device)
      : steps_(steps), options_(torch::TensorOptions(torch::kDouble).device(device)) {}

  void add(const at::Tensor& mean, std::int64_t samples) {
    if (begins(step_++)) {
      losses_.push_back(torch::zeros({}, options_));
      samples_.push_back(0);
    }
    losses_.back().add_(mean, samples);
    samples_.back() += static_cast<double>(samples);
  }

  // One row per section: the sum of its losses, and its number of samples.
  at::Tensor sums() const {
    return torch::stack({torch::stack(losses_).cpu(), torch::tensor(samples_, torch::kDouble)}, 1);
  }

  // Where the section ends, as a fraction of the epoch.
  static double end(std::int64_t stretch, std::int64_t steps) {
    return static_cast<double>(first_step(stretch + 1, steps)) / static_cast<double>(steps);
  }

 private:
  static constexpr std::int64_t kStretches = 20;

  static std::int64_t first_step(std::int64_t stretch, std::int64_t steps) {
    return steps * stretch / std::min(steps, kStretches);
  }
  bool begins(std::int64_t step) const {
    return step == first_step(static_cast<std::int64_t>(losses_.size()), steps_);
  }

  std::int64_t steps_;
  torch::TensorOptions options_;
  std::vector<at::Tensor> losses_;
  std::vector<double> samples_;
  std::int64_t step_ = 0;
};

}  // namespace

TrainingLoop::TrainingLoop(const Recipe& recipe, MemoryLoader loader, std::int64_t steps_per_epoch,
                           const LearningRateSchedule& schedule, torch::optim::Optimizer& optimizer,
                           NetInMode& net, std::optional<Amp> amp, ProcessGroup& group,
                           Progress::Log log)
    : recipe_(recipe),
      loader_(std::move(loader)),
      steps_per_epoch_(steps_per_epoch),
      schedule_(schedule),
      optimizer_(optimizer),
      net_(net),
      amp_(amp),
      scaler_({.enabled = amp == Amp::fp16}),
      group_(group),
      progress_(std::move(log)) {}

TrainingLoop::Epoch TrainingLoop::run_epoch(const std::string& label) {
  const auto start = Clock::now();
  LossSums losses(steps_per_epoch_, group_.device());
  const std::uint64_t moved_before = net_.bytes_moved();
  std::int64_t step = 0;
  for (auto& batch : loader_) {
    ++step;
    const auto where = [&] { return fmt::format("{}, step {}/{}", label, step, steps_per_epoch_); };
    at::Tensor loss;
    try {
      loss = run_step(batch);
    } catch (const NonFiniteGradient& error) {
      throw NonFiniteGradient(where() + ": " + error.what());
    } catch (const OutOfSync& error) {
      throw OutOfSync(where() + ": " + error.what());
    }
    losses.add(loss, batch.target.size(0));
    progress_.step(where, loss);
    if (observer_) report(step, loss, batch.target.size(0));
  }
  bytes_moved_ += net_.bytes_moved() - moved_before;
  const at::Tensor sums = losses.sums();  // waits for pending work on a GPU
  return agree(sums, std::chrono::duration<double>(Clock::now() - start).count());
}

at::Tensor TrainingLoop::run_step(const MemoryLoader::Batch& batch) {
  const TracedSpan span("batch", step_);
  // A flat schedule costs nothing, and does not override a rate that somebody else set.
  if (schedule_.scale != 1) set_learning_rate(learning_rate_at(schedule_, step_));
  ++step_;
  optimizer_.zero_grad();
  const at::Tensor loss = loss_of(batch);
  {
    const TracedSpan backward("backward");
    net_.backward(scaler_.scale(loss));
  }
  {
    const TracedSpan optimizer("optimizer");
    scaler_.step(optimizer_);
    scaler_.update();
  }
  net_.end_step(step_);
  return loss.detach();
}

at::Tensor TrainingLoop::loss_of(const MemoryLoader::Batch& batch) {
  const TracedSpan span("forward");
  std::optional<Autocast> autocast;
  if (amp_) autocast.emplace(group_.device(), *amp_ == Amp::bf16 ? at::kBFloat16 : at::kHalf);
  return recipe_.loss(net_.forward(batch.data), batch.target);
}

void TrainingLoop::report(std::int64_t step_of_epoch, const at::Tensor& loss,
                          std::int64_t own_samples) {
  observer_({.epoch = (step_ - 1) / steps_per_epoch_ + 1,
             .epochs = schedule_.steps / steps_per_epoch_,
             .step_of_epoch = step_of_epoch,
             .steps_per_epoch = steps_per_epoch_,
             .loss = loss,
             .learning_rate = learning_rate_at(schedule_, step_ - 1),
             .samples = own_samples * group_.size()});
}

void TrainingLoop::set_learning_rate(double rate) {
  for (auto& parameters : optimizer_.param_groups()) parameters.options().set_lr(rate);
}

// The mean losses over the samples of all ranks, and the slowest rank's time.
TrainingLoop::Epoch TrainingLoop::agree(const at::Tensor& of_rank, double seconds) {
  // The last row is the whole epoch.
  const at::Tensor rows = torch::cat({of_rank, of_rank.sum(0, /*keepdim=*/true)});
  const at::Tensor means = mean_over_ranks(rows.select(1, 0), rows.select(1, 1), group_);
  const std::int64_t parts = of_rank.size(0);
  Epoch epoch{.loss = means[parts].item<double>(),
              .seconds = std::ranges::max(all_gather_object(seconds, group_))};
  for (std::int64_t part = 0; part < parts; ++part) {
    epoch.losses.push_back({LossSums::end(part, steps_per_epoch_), means[part].item<double>()});
  }
  return epoch;
}

}  // namespace lockstep
