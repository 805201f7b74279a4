// SPDX-License-Identifier: BSD-3-Clause
// Runs the epochs of a Trainer. TrainerStep orders what one step does to gradients and parameters.
#include "lockstep/train/trainer_core.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/scheduled_rates.h"
#include "lockstep/train/share_buffers.h"
#include "lockstep/train/trainer_progress.h"

namespace lockstep {
namespace {

ErrorDetails within_step(const Error& error, std::string step, const ProcessGroup& group) {
  ErrorContext context = trainer_on(group);
  context.operation = std::move(step);
  return within(context, error);
}

}  // namespace

// A step: forward, backward, clipping, rate, optimizer.
class TrainerStep {
 public:
  // Keeps a reference to the options.
  explicit TrainerStep(const TrainerOptions& options);
  TrainerStep(const TrainerStep&) = delete;
  TrainerStep& operator=(const TrainerStep&) = delete;

  // Call it once. `model` is null unless distributed. UsageError for a second call, and if the
  // device of the parameters cannot compute with .amp.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  // Call both after use(). optimizer() throws UsageError before it.
  torch::nn::Module& module() const { return *module_; }
  torch::optim::Optimizer& optimizer() const;
  // The rate of the first parameter group.
  double learning_rate() const;
  GradScaler& scaler() { return scaler_; }
  // Returns everything that a step changes, and the numbers that determine its learning rates.
  CheckpointContents contents();
  ScheduledRates& rates() { return rates_; }

  // Discards a step that ended with an error.
  void abandon();
  // Returns the loss of one batch, detached. With `synchronize`, the gradients, whole or divided,
  // are means over the ranks when it returns.
  at::Tensor backward(const std::function<at::Tensor()>& loss, bool synchronize);
  // Updates the parameters at the rates for step number `steps`, and increments `steps`. Returns
  // false if the step was skipped.
  bool update(std::int64_t& steps);

 private:
  void clip_gradients();

  const TrainerOptions& options_;
  GradScaler scaler_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<DistributedDataParallelBase> model_;  // null unless distributed
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Device device_ = at::kCPU;  // holds the parameters
  ScheduledRates rates_;
};

TrainerStep::TrainerStep(const TrainerOptions& options)
    : options_(options), scaler_({.enabled = options.amp == at::kHalf}), rates_(options.schedule) {}

void TrainerStep::use(std::shared_ptr<torch::nn::Module> module,
                      std::shared_ptr<DistributedDataParallelBase> model,
                      std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer_) {
    throw UsageError("[Trainer] optimize_with() was called before. A trainer has one optimizer");
  }
  if (optimizer) optim::remove_repeats("Trainer", *optimizer);
  const std::vector<at::Tensor> parameters =
      optimizer ? optim::parameters_of(*optimizer) : std::vector<at::Tensor>();
  if (parameters.empty()) {
    throw UsageError("[Trainer] optimize_with() needs an optimizer that has parameters");
  }
  device_ = parameters.front().device();
  if (options_.amp) const Autocast is_possible(device_, options_.amp);
  module_ = std::move(module);
  model_ = std::move(model);
  optimizer_ = std::move(optimizer);
  rates_.use(*optimizer_);
}

torch::optim::Optimizer& TrainerStep::optimizer() const {
  if (optimizer_) return *optimizer_;
  throw UsageError("[Trainer] there is no optimizer yet. Call optimize_with() first");
}

double TrainerStep::learning_rate() const {
  return optimizer().param_groups().front().options().get_lr();
}

CheckpointContents TrainerStep::contents() {
  return {.module = module_,
          .optimizer = optimizer_.get(),
          .scaler = scaler_.is_enabled() ? &scaler_ : nullptr,
          .scheduler = &rates_.numbers()};
}

void TrainerStep::abandon() {
  optimizer().zero_grad();
  scaler_.abandon_step();
}

at::Tensor TrainerStep::backward(const std::function<at::Tensor()>& loss, bool synchronize) {
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

bool TrainerStep::update(std::int64_t& steps) {
  const TracedSpan span("optimizer");
  rates_.set(steps);
  if (options_.max_grad_norm) clip_gradients();
  const bool stepped = scaler_.step(*optimizer_);
  scaler_.update();
  ++steps;
  if (options_.check_in_sync > 0 && steps % options_.check_in_sync == 0) {
    check_in_sync(*model_, {.gradients = true});
  }
  optimizer_->zero_grad();
  return stepped;
}

void TrainerStep::clip_gradients() {
  scaler_.unscale_(*optimizer_);
  if (model_) {
    clip_grad_norm_(*model_, *options_.max_grad_norm);
  } else {
    torch::nn::utils::clip_grad_norm_(distinct_parameters(*module_), *options_.max_grad_norm);
  }
}

void detail::sync_batchnorm(torch::nn::Module& net, ProcessGroup& group) {
  convert_sync_batchnorm(net, group);
  bool any = false;
  net.apply([&](torch::nn::Module& module) { any |= module.as<SyncBatchNorm>() != nullptr; });
  if (!any || group.size() == 1) return;
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  convert_sync_batchnorm(net, group.split(ranks));
}

TrainerCore::TrainerCore(std::shared_ptr<ProcessGroup> group, TrainerOptions options)
    : group_(std::move(group)),
      options_(resolved(std::move(options), *group_)),
      step_(std::make_unique<TrainerStep>(options_)),
      progress_(std::make_unique<TrainerProgress>()) {}

TrainerCore::~TrainerCore() = default;

torch::optim::Optimizer& TrainerCore::optimizer() const {
  return step_->optimizer();
}

GradScaler& TrainerCore::scaler() {
  return step_->scaler();
}

void TrainerCore::use(std::shared_ptr<torch::nn::Module> module,
                      std::shared_ptr<DistributedDataParallelBase> model,
                      std::unique_ptr<torch::optim::Optimizer> optimizer) {
  step_->use(std::move(module), std::move(model), std::move(optimizer));
}

std::vector<EpochSummary> TrainerCore::run_epochs(const detail::RunBatches& run_batches,
                                                  const FitOptions& fit) {
  if (options_.patience > 0 && !fit.evaluate) {
    throw UsageError(trainer_on(*group_), ".patience needs the function evaluate");
  }
  step_->abandon();  // an earlier call may have ended with an error
  check_same_training(*group_, options_, fit, step_->optimizer(), step_->scaler());
  bool resumed = open_checkpoints(fit.sampler);
  lines_.reset();
  if (options_.batches_per_line > 0) lines_.emplace(options_.log, options_.batches_per_line);
  if (!resumed) *progress_ = {.steps = progress_->steps};
  if (fit.resumed && options_.checkpoints && options_.checkpoints->resume) {
    fit.resumed(progress_->steps);
  }
  std::vector<EpochSummary> summaries;
  while (progress_->epoch < options_.epochs && !has_no_patience_left()) {
    begin_epoch(resumed, fit);
    const EpochSummary& summary = summaries.emplace_back(run_epoch(run_batches, fit, resumed));
    resumed = false;
    note_evaluation(summary.evaluation);
    ++progress_->epoch;
    progress_->batches = 0;
    progress_->samples = 0;
    // This comes before the checkpoint, of which it may change contents, such as learning rates.
    if (fit.end_epoch) fit.end_epoch(summary);
    if (saves_) save(summary.evaluation, fit.sampler);
  }
  if (saves_) saves_->wait();
  return summaries;
}

// Returns whether training resumes from a checkpoint.
bool TrainerCore::open_checkpoints(EpochSampler* sampler) {
  if (!options_.checkpoints) return false;
  if (saves_) {
    throw UsageError(trainer_on(*group_),
                     "fit() of a trainer with checkpoints can be called once, since a checkpoint "
                     "does not record which call wrote it",
                     "make another trainer, with another folder");
  }
  const TrainerCheckpointOptions& checkpoints = *options_.checkpoints;
  CheckpointContents contents = step_->contents();
  contents.tensors = checkpoints.tensors;
  auto saves =
      std::make_unique<TrainerSaves>(checkpoints, std::move(contents), *group_, options_.log);
  if (!checkpoints.resume) saves->require_new_folder();
  const auto loaded = saves->load(sampler);
  saves_ = std::move(saves);
  if (!loaded) return false;
  for (const std::string& line : step_->rates().resume()) options_.log(line);
  *progress_ = *loaded;
  return true;
}

void TrainerCore::begin_epoch(bool resumed, const FitOptions& fit) {
  const std::int64_t number = progress_->epoch;
  if (!resumed) {
    progress_->batches = 0;
    progress_->samples = 0;
    if (fit.sampler != nullptr) fit.sampler->set_epoch(number);
  }
  if (fit.begin_epoch) fit.begin_epoch(number);
}

EpochSummary TrainerCore::run_epoch(const detail::RunBatches& run_batches, const FitOptions& fit,
                                    bool resumed) {
  TrainerEpoch epoch(*progress_, options_, fit.sampler, *group_);
  std::int64_t to_skip = progress_->batches;  // the checkpoint includes them
  run_batches([&](const detail::TrainerBatch& batch) {
    if (to_skip > 0) {
      --to_skip;
    } else {
      train_on(batch, epoch, fit);
    }
  });
  if (epoch.batches() == 0 && !resumed) {
    throw UsageError(trainer_on(*group_), epoch.label() + " has no batches");
  }
  EpochSummary summary = epoch.finish(step_->learning_rate());
  if (fit.evaluate) summary.evaluation = evaluated(fit);
  options_.log(fmt::format(
      "{}: mean loss {:.4f}, {:.2f} s{}{}", epoch.label(), summary.loss, summary.seconds,
      summary.evaluation ? fmt::format(", evaluation {:.4f}", *summary.evaluation) : "",
      summary.skipped > 0 ? fmt::format(", {} of {} steps skipped since gradients overflowed",
                                        summary.skipped, summary.steps)
                          : ""));
  return summary;
}

double TrainerCore::evaluated(const FitOptions& fit) {
  const TracedSpan span("evaluation");
  share_buffers(step_->module(), *group_, options_.evaluation_buffers);
  const double score = fit.evaluate();
  if (options_.patience > 0 || saves_) {
    check_same_number(*group_, score, "the number that evaluate() returned",
                      "return the same on every rank, as accuracy() does, since it decides when "
                      "training ends and which checkpoints stay");
  }
  return score;
}

void TrainerCore::train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                           const FitOptions& fit) {
  const TracedSpan span("batch", epoch.batches());
  require_size(batch, fit.sampler);
  epoch.count_batch(batch.samples);
  const bool steps = epoch.batches() % options_.accumulation_steps == 0 || batch.is_last;
  at::Tensor loss;
  try {
    loss = step_->backward(batch.loss, steps);
    epoch.add_loss(loss, batch.samples);
    if (steps) finish_step(loss, batch.is_last, epoch, fit);
  } catch (const NonFiniteGradient& error) {
    throw NonFiniteGradient(within_step(error, epoch.where(), *group_));
  } catch (const OutOfSync& error) {
    throw OutOfSync(within_step(error, epoch.where(), *group_));
  }
  if (lines_) lines_->step([&] { return epoch.where(); }, loss);
}

void TrainerCore::finish_step(const at::Tensor& loss, bool is_last, TrainerEpoch& epoch,
                              const FitOptions& fit) {
  const bool stepped = step_->update(progress_->steps);
  StepSummary summary = epoch.count_step(/*skipped=*/!stepped);
  if (fit.after_step) {
    summary.loss = loss;
    summary.learning_rate = step_->learning_rate();
    fit.after_step(summary);
  }
  // The end of an epoch has a checkpoint of its own.
  if (!saves_ || is_last || epoch.has_all_samples()) return;
  const std::int64_t every = options_.checkpoints->every_steps;
  if (every > 0 && progress_->steps % every == 0) save({}, fit.sampler);
}

// A sampler's cursor counts samples.
void TrainerCore::require_size(const detail::TrainerBatch& batch,
                               const EpochSampler* sampler) const {
  if (batch.samples >= 0 || sampler == nullptr || saves_ == nullptr) return;
  throw UsageError(trainer_on(*group_),
                   "a checkpoint with a sampler counts samples, and this type of batch does not "
                   "say how many it has",
                   "give it a member data, whose first dimension counts samples, or size()");
}

void TrainerCore::save(const std::optional<double>& score, const EpochSampler* sampler) {
  const TracedSpan span("checkpoint");
  saves_->save(*progress_, score, sampler);
}

void TrainerCore::note_evaluation(const std::optional<double>& evaluation) {
  if (!evaluation) return;
  std::optional<double>& best = progress_->best;
  const bool is_better = !std::isnan(*evaluation) && (!best || *evaluation > *best);
  if (is_better) best = evaluation;
  progress_->epochs_since_best = is_better ? 0 : progress_->epochs_since_best + 1;
}

bool TrainerCore::has_no_patience_left() const {
  if (options_.patience == 0 || progress_->epochs_since_best < options_.patience) return false;
  options_.log(fmt::format("no better than {:.4f} for {} epochs",
                           progress_->best.value_or(std::nan("")), progress_->epochs_since_best));
  return true;
}

}  // namespace lockstep
