// SPDX-License-Identifier: BSD-3-Clause
// Runs the epochs of a Trainer: steps, callbacks, evaluations, checkpoints and lines.
#include "lockstep/train/trainer_core.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/launch/console.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/over_ranks.h"
#include "lockstep/train/own_callbacks.h"
#include "lockstep/train/share_buffers.h"
#include "lockstep/train/trainer_progress.h"
#include "lockstep/train/trainer_step.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep {
namespace {

ErrorDetails within_step(const Error& error, std::string step, const ProcessGroup& group) {
  ErrorContext context = trainer_on(group);
  context.operation = std::move(step);
  return within(context, error);
}

std::int64_t rounded_up(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace

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
      step_(std::make_unique<TrainerStep>(options_, trainer_on(*group_))),
      progress_(std::make_unique<TrainerProgress>()) {
  options_.log = [this, log = std::move(options_.log)](const std::string& line) {
    if (bar_) bar_->hide();
    log(line);
  };
}

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

void TrainerCore::average_with(WeightAverage& average) {
  step_->average_with(average);
}

std::vector<EpochSummary> TrainerCore::run_epochs(const detail::RunBatches& run_batches,
                                                  const detail::LoaderBatches& batches,
                                                  const FitOptions& fit) {
  check_fit(*group_, options_, fit);
  callbacks_ = fit.callbacks;
  if (auto own = tensorboard_callback(options_.tensorboard, *group_)) callbacks_.push_back(own);
  batches_ = batches;
  if (fit.batches_per_epoch) batches_ = {.batches = fit.batches_per_epoch};
  if (const auto in_epoch = batches_of_epoch(fit.sampler, /*left=*/false);
      in_epoch && options_.progress && group_->rank() == 0 && can_show_status(OutputStream::err)) {
    const std::int64_t steps = rounded_up(*in_epoch, options_.accumulation_steps);
    bar_ = std::make_shared<ProgressBarCallback>(options_.epochs, steps, group_->size());
    callbacks_.push_back(bar_);
  }
  const auto forget_callbacks = [&] {
    callbacks_.clear();
    bar_.reset();
  };
  try {
    auto summaries = run(run_batches, fit);
    forget_callbacks();
    return summaries;
  } catch (const std::exception& error) {
    tell_callbacks(error);
    forget_callbacks();
    throw;
  } catch (...) {
    tell_callbacks(std::runtime_error("an exception that is no std::exception"));
    forget_callbacks();
    throw;
  }
}

void TrainerCore::tell_callbacks(const std::exception& error) const {
  for (const auto& callback : callbacks_) callback->on_exception(error);
}

std::vector<EpochSummary> TrainerCore::run(const detail::RunBatches& run_batches,
                                           const FitOptions& fit) {
  step_->abandon();  // an earlier call may have ended with an error
  *progress_ = {.steps = progress_->steps};
  best_weights_.clear();
  check_same_training(*group_, options_, schedule(fit.sampler, /*resumed=*/false), fit,
                      step_->optimizer(), step_->scaler());
  bool resumed = open_checkpoints(fit.sampler);
  progress_->watched = watch_text(options_.watch);
  begin_rates(fit.sampler, resumed);
  if (options_.checkpoints && options_.checkpoints->resume) {
    for (const auto& callback : callbacks_) callback->resumed(progress_->steps);
    if (fit.resumed) fit.resumed(progress_->steps);
  }
  std::vector<EpochSummary> summaries;
  while (progress_->epoch < options_.epochs && !has_no_patience_left()) {
    begin_epoch(resumed, fit);
    const EpochSummary& summary = summaries.emplace_back(run_epoch(run_batches, fit, resumed));
    resumed = false;
    note_evaluation(summary.evaluation);
    if (summary.evaluation && step_->rates().evaluated(*summary.evaluation)) {
      options_.log(fmt::format("the learning rate falls to {:g}", step_->learning_rate()));
    }
    if (summaries.size() == 1) {
      log_what_decides(summary);
      log_unused_parameters();
    }
    ++progress_->epoch;
    progress_->batches = 0;
    progress_->samples = 0;
    // These come before the checkpoint, of which they may change contents, such as learning rates.
    for (const auto& callback : callbacks_) callback->after_epoch(summary);
    if (fit.end_epoch) fit.end_epoch(summary);
    step_->rates().settle();
    if (saves_) save(summary.evaluation, fit.sampler);
  }
  if (const std::string why = progress_->end_text(options_, !summaries.empty()); !why.empty()) {
    options_.log(why);
  }
  if (saves_) saves_->wait();
  if (options_.restore_best) restore_best();
  return summaries;
}

// Returns whether training resumes from a checkpoint.
bool TrainerCore::open_checkpoints(EpochSampler* sampler) {
  if (!options_.checkpoints) return false;
  if (saves_) {
    throw UsageError(trainer_on(*group_),
                     "fit() of a trainer with checkpoints can be called once, since a checkpoint "
                     "does not record which call wrote it",
                     "make another trainer: with another folder, or with .resume to go on");
  }
  const TrainerCheckpointOptions& checkpoints = *options_.checkpoints;
  CheckpointContents contents = step_->contents();
  contents.tensors.insert(contents.tensors.end(), checkpoints.tensors.begin(),
                          checkpoints.tensors.end());
  step_->rates().before_load();
  auto saves = std::make_unique<TrainerSaves>(checkpoints, std::move(contents),
                                              watch_text(options_.watch), *group_, options_.log);
  if (!checkpoints.resume) saves->require_new_folder();
  const auto loaded = saves->load(sampler);
  saves_ = std::move(saves);
  if (!loaded) return false;
  *progress_ = *loaded;
  // What was best by another metric says nothing.
  if (!progress_->watched.empty() && progress_->watched != watch_text(options_.watch)) {
    options_.log(
        fmt::format("the best evaluation so far is forgotten: it was of {}, and now {} "
                    "decides",
                    progress_->watched, watch_text(options_.watch)));
    progress_->forget_best();
    step_->rates().forget_plateau();
  }
  return true;
}

// Refuses a schedule that ends before the run does, if the number of steps is known.
void TrainerCore::require_rates(const optim::LRSchedule& planned, const EpochSampler* sampler,
                                bool resumed) const {
  if (progress_->samples > 0) return;  // the number of batches left may be an estimate
  const auto steps = find_steps_of_run(sampler, resumed);
  const auto last = planned.last_step();
  if (!steps || !last || *last >= *steps) return;
  throw UsageError(ErrorDetails{
      .cause = fmt::format("lr_schedule ends at step {}, and training at step {}", *last, *steps),
      .remedy = "set .total_steps of the OneCycleLR to the number of all steps, which a function "
                "as .lr_schedule gets"});
}

void TrainerCore::begin_rates(const EpochSampler* sampler, bool resumed) {
  const auto planned = schedule(sampler, resumed);
  std::vector<std::string> lines;
  try {
    if (planned) {
      planned->check(step_->optimizer().param_groups().size());
      require_rates(*planned, sampler, resumed);
    }
    lines = step_->rates().begin(planned, progress_->steps, resumed);
  } catch (const Error&) {
    rethrow_within(trainer_on(*group_));
  }
  for (const std::string& line : lines) options_.log(line);
}

// Returns the number of batches of an epoch or, if `left`, of its rest; nullopt if it is unknown.
std::optional<std::int64_t> TrainerCore::batches_of_epoch(const EpochSampler* sampler,
                                                          bool left) const {
  const auto& [batches, batch_size, drop_last] = batches_;
  if (sampler == nullptr || (!left && !batch_size)) {
    if (!batches) return {};
    return *batches - (left ? progress_->batches : 0);
  }
  const auto all = static_cast<std::int64_t>(sampler->size());
  const auto samples = left ? static_cast<std::int64_t>(sampler->indices().size()) : all;
  if (batch_size) return drop_last ? samples / *batch_size : rounded_up(samples, *batch_size);
  if (!batches || all == 0) return {};
  return rounded_up(samples * *batches, all);
}

// Returns the schedule of a run that has come to `progress_`; nullopt if there is none.
std::optional<optim::LRSchedule> TrainerCore::schedule(const EpochSampler* sampler,
                                                       bool resumed) const {
  if (!options_.lr_schedule) return {};
  std::int64_t steps = 0;  // which a value does not need
  if (options_.lr_schedule.needs_steps()) {
    const auto found = find_steps_of_run(sampler, resumed);
    if (!found) {
      throw UsageError(trainer_on(*group_),
                       "lr_schedule needs the number of all steps, and this range does not say how "
                       "many batches an epoch has",
                       "give fit() the .sampler of the loader, or .batches_per_epoch");
    }
    steps = *found;
  }
  optim::LRSchedule made = options_.lr_schedule.of(steps);
  if (options_.lr_scale != 1 && made.ignores_initial_lr()) {
    throw UsageError(
        trainer_on(*group_),
        fmt::format("lr_scale is {}, which a OneCycleLR ignores: its rates are its own",
                    options_.lr_scale),
        "leave lr_scale out, and multiply .max_lr");
  }
  return made;
}

// Returns the number of steps that are done and left; nullopt if it is unknown.
std::optional<std::int64_t> TrainerCore::find_steps_of_run(const EpochSampler* sampler,
                                                           bool resumed) const {
  const std::int64_t epochs_left = options_.epochs - progress_->epoch;
  const auto batches = batches_of_epoch(sampler, /*left=*/false);
  const auto batches_left = batches_of_epoch(sampler, /*left=*/resumed);
  if (!batches || !batches_left) return {};
  std::int64_t steps = progress_->steps;
  if (epochs_left > 0) {
    steps += rounded_up(*batches_left, options_.accumulation_steps) +
             (epochs_left - 1) * rounded_up(*batches, options_.accumulation_steps);
  }
  return steps;
}

void TrainerCore::begin_epoch(bool resumed, const FitOptions& fit) {
  const std::int64_t number = progress_->epoch;
  lines_.reset();
  if (options_.batches_per_line > 0 && !bar_) {
    lines_.emplace(options_.log, options_.batches_per_line);
  }
  if (!resumed) {
    progress_->batches = 0;
    progress_->samples = 0;
    if (fit.sampler != nullptr) fit.sampler->set_epoch(number);
  }
  for (const auto& callback : callbacks_) callback->before_epoch(number);
  if (fit.begin_epoch) fit.begin_epoch(number);
  renew_wrapper();
}

// Wraps the module again if the program has frozen or unfrozen parameters.
void TrainerCore::renew_wrapper() {
  const std::string trained = step_->trained_parameters();
  check_same_parameters(*group_, step_->module(), trained);
  if (!step_->starts_training(trained) || options_.mode != TrainingMode::distributed) return;
  if (options_.shard_optimizer) {
    throw UsageError(trainer_on(*group_),
                     "parameters were frozen or unfrozen, and a sharded optimizer has the parts of "
                     "those that were trained when it was made",
                     "freeze before making the trainer, or leave .shard_optimizer off");
  }
  step_->set_model(nullptr);
  step_->set_model(wrap_again());
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
  if (fit.evaluate) {
    for (const auto& callback : callbacks_) callback->before_evaluation(summary.epoch);
    summary.metrics = evaluated(fit);
    summary.evaluation = watched(summary.metrics);
    for (const auto& callback : callbacks_) {
      callback->after_evaluation(summary.epoch, summary.metrics);
    }
  }
  std::string line =
      fmt::format("{}: mean loss {:.4f}, {:.2f} s", epoch.label(), summary.loss, summary.seconds);
  for (const auto& [name, value] : summary.metrics) line += fmt::format(", {} {:.4f}", name, value);
  if (summary.skipped > 0) {
    line += fmt::format(", {} of {} steps skipped since gradients overflowed", summary.skipped,
                        summary.steps);
  }
  options_.log(line);
  return summary;
}

Metrics TrainerCore::evaluated(const FitOptions& fit) {
  const TracedSpan span("evaluation");
  share_buffers(step_->module(), *group_, options_.evaluation_buffers);
  WeightAverage* const average = step_->average_to_evaluate();
  if (average == nullptr) return fit.evaluate();
  const auto averaged = average->swap_in();
  // The averages of a rank have the buffers of its last step.
  share_buffers(step_->module(), *group_, options_.evaluation_buffers);
  return fit.evaluate();
}

// Returns the metric that decides; nullopt if none does.
std::optional<double> TrainerCore::watched(const Metrics& metrics) const {
  const auto found = watched_metric(metrics, options_, trainer_on(*group_));
  if (found == metrics.end()) return {};
  if (evaluations_decide(options_)) {
    check_same_number(*group_, found->second, "the number that evaluate() returned",
                      "return the same on every rank, as accuracy() does, since it decides when "
                      "training ends and which checkpoints stay");
  }
  return found->second;
}

void TrainerCore::train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                           const FitOptions& fit) {
  const TracedSpan span("batch", epoch.batches());
  require_size(batch, fit.sampler);
  epoch.count_batch(batch.samples);
  const bool steps = epoch.batches() % options_.accumulation_steps == 0 || batch.is_last;
  if ((epoch.batches() - 1) % options_.accumulation_steps == 0) {
    for (const auto& callback : callbacks_) callback->before_step(progress_->steps + 1);
  }
  at::Tensor loss;
  try {
    loss = step_->backward(batch.loss, steps);
    epoch.add_loss(loss, batch.samples);
    if (steps) finish_step(loss, batch, epoch, fit);
  } catch (const NonFiniteGradient& error) {
    throw NonFiniteGradient(within_step(error, epoch.where(), *group_));
  } catch (const OutOfSync& error) {
    throw OutOfSync(within_step(error, epoch.where(), *group_));
  }
  if (lines_) lines_->step([&] { return epoch.where(); }, loss);
}

void TrainerCore::finish_step(const at::Tensor& loss, const detail::TrainerBatch& batch,
                              TrainerEpoch& epoch, const FitOptions& fit) {
  const double learning_rate = step_->learning_rate();
  const bool stepped = step_->update(progress_->steps);
  StepSummary summary = epoch.count_step(/*skipped=*/!stepped);
  if (fit.after_step || !callbacks_.empty()) {
    summary.loss = loss;
    summary.mean_loss = [this, loss, weight = batch.samples >= 0 ? batch.samples : 1] {
      const CallScope scope(CallOrigin::trainer);
      const auto samples = static_cast<double>(weight);
      return mean_over_ranks(loss.detach().reshape({1}).to(at::kCPU, at::kDouble) * samples,
                             at::full({1}, samples, at::kDouble), *group_)
          .item<double>();
    };
    summary.learning_rate = learning_rate;
    for (const auto& callback : callbacks_) callback->after_step(summary);
    if (fit.after_step) fit.after_step(summary);
    step_->rates().settle();
  }
  // The end of an epoch has a checkpoint of its own.
  if (!saves_ || batch.is_last || epoch.has_all_samples()) return;
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
  for (const auto& callback : callbacks_) callback->before_checkpoint(progress_->steps);
  step_->rates().settle();
  step_->rates().note_numbers();
  const bool negative = score && options_.watch.lower_is_better;
  saves_->save(*progress_, negative ? -*score : score, sampler);
  for (const auto& callback : callbacks_) callback->after_checkpoint(progress_->steps);
}

void TrainerCore::note_evaluation(const std::optional<double>& evaluation) {
  if (!evaluation) return;
  const bool is_best = progress_->note_evaluation(*evaluation, options_.watch.lower_is_better);
  if (is_best && options_.restore_best && !saves_) best_weights_ = step_->weights();
}

bool TrainerCore::has_no_patience_left() const {
  return options_.patience > 0 && progress_->epochs_since_best >= options_.patience;
}

void TrainerCore::log_what_decides(const EpochSummary& first) const {
  if (!first.evaluation || !evaluations_decide(options_)) return;
  const auto watched = watched_metric(first.metrics, options_, trainer_on(*group_));
  options_.log(fmt::format("{} decides", watch_text(options_.watch, watched->first)));
}

void TrainerCore::log_unused_parameters() const {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> names = step_->take_parameters_without_gradient();
  if (names.empty()) return;
  const std::size_t count = names.size();
  names.resize(std::min(count, kMost));
  options_.log(fmt::format(
      "{} parameter{} never got a gradient in the first epoch: {}{}; use {} in the loss, or freeze "
      "{} with requires_grad_(false)",
      count, count == 1 ? "" : "s", fmt::join(names, ", "), count > kMost ? ", ..." : "",
      count == 1 ? "it" : "them", count == 1 ? "it" : "them"));
}

bool TrainerCore::load_best() {
  if (!saves_) {
    throw UsageError(trainer_on(*group_), "load_best() needs the checkpoints of a fit()",
                     "set .checkpoints, and call fit() first");
  }
  if (!saves_->load_best()) return false;
  // The averages have been loaded, too.
  if (step_->average_to_evaluate() != nullptr) {
    load_state_dict(step_->module(), step_->weights());
  }
  return true;
}

void TrainerCore::restore_best() {
  if (saves_) {
    load_best();
  } else if (!best_weights_.empty()) {
    load_state_dict(step_->module(), best_weights_);
    options_.log(fmt::format("the weights are those of epoch {}, the best",
                             progress_->best_epoch.value_or(0) + 1));
  }
}

}  // namespace lockstep
