// SPDX-License-Identifier: BSD-3-Clause
// One epoch of a Trainer: batches, steps, callbacks and evaluation.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/train/elastic_training.h"
#include "lockstep/train/microbatch_step.h"
#include "lockstep/train/optimizer_shards.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/over_ranks.h"
#include "lockstep/train/trainer_callbacks.h"
#include "lockstep/train/trainer_core.h"
#include "lockstep/train/trainer_evaluation.h"
#include "lockstep/train/trainer_progress.h"
#include "lockstep/train/trainer_state.h"
#include "lockstep/train/trainer_step.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep {
namespace {

ErrorDetails within_step(const Error& error, std::string step, const ProcessGroup& group) {
  ErrorContext context = trainer_on(group);
  context.operation = std::move(step);
  return within(context, error);
}

template <class Function>
void name_step_in_errors(const TrainerEpoch& epoch, const ProcessGroup& group,
                         const Function& function) {
  try {
    function();
  } catch (const NonFiniteGradient& error) {
    throw NonFiniteGradient(within_step(error, epoch.where(), group));
  } catch (const OutOfSync& error) {
    throw OutOfSync(within_step(error, epoch.where(), group));
  }
}

}  // namespace

EpochSummary TrainerCore::run_epoch(const detail::RunBatches& run_batches, const FitOptions& fit,
                                    bool resumed) {
  TrainerEpoch epoch(*progress_, options_, fit.sampler, *group_);
  std::int64_t to_skip = progress_->batches;  // the checkpoint includes them
  bool dealt_anew = false;                    // the rest of the epoch was, so a new loop begins
  const auto train_on_batch = [&](const detail::TrainerBatch& batch) {
    if (to_skip > 0) {
      --to_skip;
    } else if (plan_) {
      dealt_anew = train_on_microbatch(batch, epoch, fit);
    } else {
      train_on(batch, epoch, fit);
    }
    return !dealt_anew;
  };
  // After the loss of a rank during the evaluation, no samples are left.
  bool has_batches = !plan_ || !epoch.has_all_samples();
  while (has_batches) {
    if (plan_) microbatches_->begin_loop();
    run_batches(train_on_batch);
    has_batches = std::exchange(dealt_anew, false) && !epoch.has_all_samples();
  }
  if (plan_ && !microbatches_->is_complete()) finish_microbatches(epoch, fit);  // throws
  // A rank may have no samples of the last global batch.
  while (plan_ && !epoch.has_all_samples()) {
    begin_microbatches(epoch, fit);
    finish_microbatches(epoch, fit);
  }
  if (epoch.batches() == 0 && !resumed) {
    throw UsageError(trainer_on(*group_), epoch.label() + " has no batches");
  }
  EpochSummary summary = epoch.finish(step_->learning_rate());
  if (fit.evaluate) {
    for (const auto& callback : *callbacks_) callback->before_evaluation(summary.epoch);
    summary.metrics = evaluation_->evaluate(fit, *group_);
    summary.evaluation = evaluation_->watched(summary.metrics, *group_);
    for (const auto& callback : *callbacks_) {
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

void TrainerCore::train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                           const FitOptions& fit) {
  const TracedSpan span("batch", epoch.batches());
  require_size(batch, fit.sampler);
  epoch.count_batch(batch.samples, batch.samples * group_->size());
  const bool steps = epoch.batches() % options_.accumulation_steps == 0 || batch.is_last;
  if ((epoch.batches() - 1) % options_.accumulation_steps == 0) {
    for (const auto& callback : *callbacks_) callback->before_step(progress_->steps + 1);
  }
  at::Tensor loss;
  name_step_in_errors(epoch, *group_, [&] {
    loss = step_->backward(batch.loss, steps);
    epoch.add_loss(loss, batch.samples);
    if (steps) finish_step(loss, batch, epoch, fit);
  });
  if (lines_) lines_->step([&] { return epoch.where(); }, loss);
}

// Tells the sampler which microbatches this rank loads; ends that without .microbatches.
void TrainerCore::deal_microbatches(EpochSampler* sampler) {
  plan_.reset();
  if (options_.microbatches > 0) {
    if (!microbatches_) step_->optimizer();  // throws
    plan_ = std::make_unique<MicrobatchPlan>(microbatches_->plan_for(sampler, batches_.batch_size));
  }
  if (sampler == nullptr) return;
  sampler->deal_microbatches(plan_ ? std::optional(*plan_) : std::nullopt);
}

void TrainerCore::begin_microbatches(TrainerEpoch& epoch, const FitOptions& fit) {
  const DataCursor data = fit.sampler->cursor_after(0);
  if (epoch.has_all_samples()) {
    throw UsageError(trainer_on(*group_), epoch.label() + " has more batches than microbatches",
                     "make the loader with the sampler that fit() gets");
  }
  for (const auto& callback : *callbacks_) callback->before_step(progress_->steps + 1);
  progress_->begin_step();
  const std::int64_t samples = plan_->samples_of_step(progress_->samples, data.samples);
  microbatches_->begin(data.seed, progress_->steps, samples);
  epoch.count_batch(microbatches_->own_samples(), samples);
}

// Returns whether the rest of the epoch was dealt anew.
bool TrainerCore::train_on_microbatch(const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                                      const FitOptions& fit) {
  microbatches_->set_waiting(false);
  const TracedSpan span("batch", epoch.batches());
  require_size(batch, fit.sampler);
  if (microbatches_->is_complete()) begin_microbatches(epoch, fit);
  microbatches_->add(batch.loss, batch.samples);
  const bool dealt_anew = microbatches_->is_complete() && finish_microbatches(epoch, fit);
  microbatches_->set_waiting(true);
  return dealt_anew;
}

// Returns whether the rest of the epoch was dealt anew.
bool TrainerCore::finish_microbatches(TrainerEpoch& epoch, const FitOptions& fit) {
  if (!microbatches_->is_complete()) {
    throw UsageError(trainer_on(*group_), epoch.where() + " got fewer batches than microbatches",
                     "make the loader with the sampler that fit() gets");
  }
  at::Tensor loss;
  const std::int64_t samples = microbatches_->samples();
  name_step_in_errors(epoch, *group_, [&] {
    if (elastic_) elastic_->note_waiting();
    loss = microbatches_->finish(elastic_ && elastic_->asks_to_leave());
    epoch.add_loss(loss, samples);
    finish_step(loss, {.samples = samples, .is_last = false, .loss = {}}, epoch, fit);
  });
  if (lines_) lines_->step([&] { return epoch.where(); }, loss);
  if (elastic_) {
    elastic_->note_steps(progress_->steps);
    if (microbatches_->all_leave()) leave_generation();
  }
  return change_shares(epoch, fit);
}

// Deals the rest of the epoch anew if other shares are better. Returns whether it was.
bool TrainerCore::change_shares(const TrainerEpoch& epoch, const FitOptions& fit) {
  const auto line = microbatches_->change_shares();
  if (!line) return false;
  options_.log(fmt::format("{}: {}", epoch.where(), *line));
  if (!epoch.has_all_samples()) {
    fit.sampler->resume(fit.sampler->cursor_after(progress_->samples));
  }
  deal_microbatches(fit.sampler);
  return true;
}

void TrainerCore::finish_step(const at::Tensor& loss, const detail::TrainerBatch& batch,
                              TrainerEpoch& epoch, const FitOptions& fit) {
  const double learning_rate = step_->learning_rate();
  shards_->begin_update();
  const bool stepped = step_->update(progress_->steps);
  if (microbatches_) microbatches_->end_step();
  StepSummary summary = epoch.count_step(/*skipped=*/!stepped);
  // A rank that is lost in here costs nothing of the step, which this one has made and counted.
  step_->compare_ranks(progress_->steps);
  if (fit.after_step || !callbacks_->empty()) {
    summary.loss = loss;
    summary.mean_loss = [this, loss, weight = batch.samples >= 0 ? batch.samples : 1] {
      if (plan_) return loss.item<double>();  // of all ranks already
      const CallScope scope(CallOrigin::trainer);
      const auto samples = static_cast<double>(weight);
      return mean_over_ranks(loss.detach().reshape({1}).to(at::kCPU, at::kDouble) * samples,
                             at::full({1}, samples, at::kDouble), *group_)
          .item<double>();
    };
    summary.learning_rate = learning_rate;
    for (const auto& callback : *callbacks_) callback->after_step(summary);
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
  if (batch.samples >= 0 || sampler == nullptr || (saves_ == nullptr && !plan_)) return;
  throw UsageError(
      trainer_on(*group_),
      fmt::format("{} samples, and this type of batch does not say how many it has",
                  plan_ ? "a step in microbatches counts" : "a checkpoint with a sampler counts"),
      "give it a member data, whose first dimension counts samples, or size()");
}

}  // namespace lockstep
