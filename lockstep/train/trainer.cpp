// SPDX-License-Identifier: BSD-3-Clause
// The order of a step: forward, backward, clipping, rate, optimizer; and what an epoch adds up.
#include "lockstep/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/train/over_ranks.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/resolved_options.h"
#include "lockstep/train/trainer_saves.h"

namespace lockstep {
namespace {

bool is_flat(const LearningRateSchedule& schedule) {
  return schedule.base == 1 && schedule.scale == 1 && schedule.decay == LearningRateDecay::none;
}

}  // namespace

// What an epoch adds up.
class TrainerBase::Epoch {
 public:
  // Goes on after the batches and samples of the trainer's progress.
  Epoch(TrainerBase& trainer, const FitOptions& fit, bool resumed)
      : trainer_(trainer), fit_(fit), resumed_(resumed), passed_over_(trainer.progress_->batches) {
    summary_.epoch = trainer.progress_->epoch;
  }

  void train_on(std::int64_t samples, bool last, const Loss& loss) {
    if (passed_over_ > 0) {
      --passed_over_;
      return;
    }
    const TracedSpan span("batch", batches_);
    require_size(samples);
    count(samples);
    const bool steps = batches_ % trainer_.options_.accumulation_steps == 0 || last;
    at::Tensor value;
    try {
      value = trainer_.backward(loss, steps);
      // A copy: the loss is the user's.
      const auto weight = static_cast<double>(samples >= 0 ? samples : 1);
      if (!losses_.defined()) losses_ = at::zeros({}, value.options().dtype(at::kDouble));
      losses_.add_(value.reshape({}), weight);
      weights_ += weight;
      if (steps) finish_step(value, last);
    } catch (const NonFiniteGradient& error) {
      throw NonFiniteGradient(fmt::format("{}: {}", where(), error.what()));
    } catch (const OutOfSync& error) {
      throw OutOfSync(fmt::format("{}: {}", where(), error.what()));
    }
    if (trainer_.lines_) trainer_.lines_->step([&] { return where(); }, value);
  }

  // Collective.
  EpochSummary finish() {
    if (batches_ == 0 && !resumed_) {
      throw UsageError(fmt::format("[Trainer] rank {} of {}: {} has no batches",
                                   trainer_.group().rank(), trainer_.group().size(), label()));
    }
    const at::Tensor sum = losses_.defined()
                               ? losses_.cpu().view({1})
                               : at::zeros({1}, at::kDouble);  // waits for pending work on a GPU
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
    summary_.loss =
        mean_over_ranks(sum, at::full({1}, weights_, at::kDouble), trainer_.group()).item<double>();
    summary_.seconds = std::ranges::max(all_gather_object(time.count(), trainer_.group()));
    return summary_;
  }

  std::string label() const {
    return fmt::format("epoch {}/{}", summary_.epoch + 1, trainer_.options_.epochs);
  }

 private:
  // The cursor of a sampler counts samples.
  void require_size(std::int64_t samples) const {
    if (samples >= 0 || fit_.sampler == nullptr || trainer_.saves_ == nullptr) return;
    throw UsageError(
        "[Trainer] a checkpoint with a sampler counts samples, and this type of batch does not say "
        "how many it has; give it a member data, whose first dimension is that of samples, or "
        "size()");
  }

  void count(std::int64_t samples) {
    ++batches_;
    ++trainer_.progress_->batches;
    if (samples < 0) samples_of_step_ = -1;
    if (samples_of_step_ < 0) return;
    const std::int64_t of_all_ranks = samples * trainer_.group().size();
    samples_of_step_ += samples;
    trainer_.progress_->samples += of_all_ranks;
    if (batches_ == 1) samples_of_batch_ = of_all_ranks;
  }

  // "epoch 2/5, step 100/938"; without a sampler, the number of batches is not known.
  std::string where() const {
    const TrainerProgress& progress = *trainer_.progress_;
    const char* const what = trainer_.options_.accumulation_steps == 1 ? "step" : "batch";
    if (fit_.sampler == nullptr || samples_of_batch_ <= 0) {
      return fmt::format("{}, {} {}", label(), what, progress.batches);
    }
    const auto batches_in = [&](std::int64_t samples) {
      return (samples + samples_of_batch_ - 1) / samples_of_batch_;
    };
    return fmt::format("{}, {} {}/{}", label(), what, batches_in(progress.samples),
                       batches_in(samples_in_epoch()));
  }

  // On all ranks together. Needs a sampler.
  std::int64_t samples_in_epoch() const {
    return static_cast<std::int64_t>(fit_.sampler->size()) * trainer_.group().size();
  }

  void finish_step(const at::Tensor& loss, bool last) {
    ++summary_.steps;
    if (!trainer_.step()) ++summary_.skipped;
    const TrainerProgress& progress = *trainer_.progress_;
    if (fit_.after_step) {
      const auto& groups = trainer_.optimizer_->param_groups();
      fit_.after_step({.epoch = summary_.epoch,
                       .step = progress.steps,
                       .loss = loss,
                       .learning_rate = groups.front().options().get_lr(),
                       .samples = samples_of_step_,
                       .samples_of_epoch = samples_of_step_ < 0 ? -1 : progress.samples});
    }
    if (samples_of_step_ > 0) samples_of_step_ = 0;
    // The end of an epoch has a checkpoint of its own.
    const bool is_last =
        last || (fit_.sampler != nullptr && progress.samples >= samples_in_epoch());
    if (!trainer_.saves_ || is_last) return;
    const std::int64_t every = trainer_.options_.checkpoints->every_steps;
    if (every > 0 && progress.steps % every == 0) trainer_.save({}, fit_.sampler);
  }

  TrainerBase& trainer_;
  const FitOptions& fit_;
  bool resumed_;
  EpochSummary summary_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t passed_over_;  // batches that are still to be passed over
  std::int64_t batches_ = 0;  // trained on here
  // Of this rank since the last step, -1 if unknown; and of all ranks in a full batch.
  std::int64_t samples_of_step_ = 0;
  std::int64_t samples_of_batch_ = 0;
  at::Tensor losses_;  // their sum, each times its weight, on the device
  double weights_ = 0;
};

TrainerBase::TrainerBase(std::shared_ptr<ProcessGroup> group, TrainerOptions options)
    : group_(std::move(group)),
      options_(resolved(std::move(options), *group_)),
      scaler_({.enabled = options_.amp == at::kHalf}),
      progress_(std::make_unique<TrainerProgress>()) {}

TrainerBase::~TrainerBase() = default;

torch::optim::Optimizer& TrainerBase::optimizer() const {
  if (optimizer_) return *optimizer_;
  throw UsageError("[Trainer] there is no optimizer yet. Call optimize_with() first");
}

void TrainerBase::use(std::shared_ptr<torch::nn::Module> module,
                      std::shared_ptr<DistributedDataParallelBase> model,
                      std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer_) {
    throw UsageError("[Trainer] optimize_with() was called before. A trainer has one optimizer");
  }
  device_ = optimizer->param_groups().front().params().front().device();
  if (options_.amp) const Autocast is_possible(device_, options_.amp);
  module_ = std::move(module);
  model_ = std::move(model);
  optimizer_ = std::move(optimizer);
  for (auto& parameters : optimizer_->param_groups()) {
    rates_.push_back(parameters.options().get_lr());
  }
}

// Gradients are whole or divided, and already means over the ranks, when it returns from a batch
// that synchronizes.
at::Tensor TrainerBase::backward(const Loss& loss, bool synchronize) {
  std::optional<NoSync> no_sync;
  if (model_ && !synchronize) no_sync.emplace(model_->no_sync());
  at::Tensor value;
  {
    std::optional<Autocast> autocast;
    if (options_.amp) autocast.emplace(device_, options_.amp);
    const TracedSpan span("forward");
    value = loss();
  }
  const TracedSpan span("backward");
  const bool accumulates = options_.accumulation_steps > 1;
  scaler_.scale(accumulates ? value / options_.accumulation_steps : value).backward();
  if (options_.check_finite && !model_) check_finite_gradients(*module_);
  return value.detach();
}

// False if it was skipped.
bool TrainerBase::step() {
  const TracedSpan span("optimizer");
  scale_learning_rates();
  if (options_.max_grad_norm) clip_gradients();
  const bool stepped = scaler_.step(*optimizer_);
  scaler_.update();
  ++progress_->steps;
  if (options_.check_in_sync > 0 && progress_->steps % options_.check_in_sync == 0) {
    check_in_sync(*model_, {.gradients = true});
  }
  optimizer_->zero_grad();
  return stepped;
}

void TrainerBase::clip_gradients() {
  scaler_.unscale_(*optimizer_);
  if (model_) {
    clip_grad_norm_(*model_, *options_.max_grad_norm);
    return;
  }
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_->param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  torch::nn::utils::clip_grad_norm_(parameters, *options_.max_grad_norm);
}

void TrainerBase::scale_learning_rates() {
  // A flat schedule does not override a rate that somebody else set.
  if (is_flat(options_.schedule)) return;
  const double factor = learning_rate_at(options_.schedule, progress_->steps);
  for (std::size_t i = 0; i < rates_.size(); ++i) {
    optimizer_->param_groups()[i].options().set_lr(rates_[i] * factor);
  }
}

// Whether the training goes on from a checkpoint.
bool TrainerBase::open_checkpoints(EpochSampler* sampler) {
  if (!options_.checkpoints) return false;
  if (saves_) {
    throw UsageError(
        "[Trainer] fit() of a trainer with checkpoints can be called once, since a checkpoint does "
        "not say which call it is of; make another trainer, with another folder");
  }
  const TrainerCheckpointOptions& checkpoints = *options_.checkpoints;
  auto saves = std::make_unique<TrainerSaves>(
      checkpoints,
      CheckpointContents{.module = module_,
                         .optimizer = optimizer_.get(),
                         .scaler = scaler_.is_enabled() ? &scaler_ : nullptr,
                         .tensors = checkpoints.tensors},
      *group_, options_.log);
  if (!checkpoints.resume) saves->require_new_folder();
  const auto loaded = saves->load(sampler);
  saves_ = std::move(saves);
  if (!loaded) return false;
  *progress_ = *loaded;
  return true;
}

void TrainerBase::begin_epoch(bool resumed, const FitOptions& fit) {
  const std::int64_t number = progress_->epoch;
  if (!resumed) {
    progress_->batches = 0;
    progress_->samples = 0;
    if (fit.sampler != nullptr) fit.sampler->set_epoch(number);
  }
  if (fit.begin_epoch) fit.begin_epoch(number);
}

EpochSummary TrainerBase::run_epoch(const std::function<void(const TrainOn&)>& run_batches,
                                    const FitOptions& fit, bool resumed) {
  Epoch epoch(*this, fit, resumed);
  run_batches([&](std::int64_t samples, bool last, const Loss& loss) {
    epoch.train_on(samples, last, loss);
  });
  EpochSummary summary = epoch.finish();
  if (fit.evaluate) {
    const TracedSpan span("evaluation");
    summary.evaluation = fit.evaluate();
  }
  options_.log(fmt::format(
      "{}: mean loss {:.4f}, {:.2f} s{}", epoch.label(), summary.loss, summary.seconds,
      summary.evaluation ? fmt::format(", evaluation {:.4f}", *summary.evaluation) : ""));
  return summary;
}

void TrainerBase::save(const std::optional<double>& score, const EpochSampler* sampler) {
  const TracedSpan span("checkpoint");
  saves_->save(*progress_, score, sampler);
}

void TrainerBase::note_evaluation(const std::optional<double>& evaluation) {
  if (!evaluation) return;
  std::optional<double>& best = progress_->best;
  const bool is_better = !std::isnan(*evaluation) && (!best || *evaluation > *best);
  if (is_better) best = evaluation;
  progress_->epochs_since_best = is_better ? 0 : progress_->epochs_since_best + 1;
}

bool TrainerBase::has_no_patience_left() const {
  if (options_.patience == 0 || progress_->epochs_since_best < options_.patience) return false;
  options_.log(fmt::format("no better than {:.4f} for {} epochs",
                           progress_->best.value_or(std::nan("")), progress_->epochs_since_best));
  return true;
}

std::vector<EpochSummary> TrainerBase::run_epochs(
    const std::function<void(const TrainOn&)>& run_batches, const FitOptions& fit) {
  if (options_.patience > 0 && !fit.evaluate) {
    throw UsageError("[Trainer] .patience needs the function evaluate");
  }
  optimizer().zero_grad();
  scaler_.abandon_step();  // of an earlier call that ended with an error
  bool resumed = open_checkpoints(fit.sampler);
  lines_.reset();
  if (options_.batches_per_line > 0) lines_.emplace(options_.log, options_.batches_per_line);
  if (!resumed) *progress_ = {.steps = progress_->steps};
  std::vector<EpochSummary> summaries;
  while (progress_->epoch < options_.epochs && !has_no_patience_left()) {
    begin_epoch(resumed, fit);
    const EpochSummary& summary = summaries.emplace_back(run_epoch(run_batches, fit, resumed));
    resumed = false;
    note_evaluation(summary.evaluation);
    ++progress_->epoch;
    progress_->batches = 0;
    progress_->samples = 0;
    if (saves_) save(summary.evaluation, fit.sampler);
    if (fit.end_epoch) fit.end_epoch(summary);
  }
  if (saves_) saves_->wait();
  return summaries;
}

}  // namespace lockstep
