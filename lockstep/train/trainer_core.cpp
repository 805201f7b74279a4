// SPDX-License-Identifier: BSD-3-Clause
// Runs the epochs of a Trainer, from the first or from a checkpoint, and with other ranks after
// losses.
#include "lockstep/train/trainer_core.h"

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

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/train/deterministic_mode.h"
#include "lockstep/train/elastic_training.h"
#include "lockstep/train/microbatch_step.h"
#include "lockstep/train/optimizer_shards.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/run_length.h"
#include "lockstep/train/same_training.h"
#include "lockstep/train/trainer_callbacks.h"
#include "lockstep/train/trainer_evaluation.h"
#include "lockstep/train/trainer_progress.h"
#include "lockstep/train/trainer_state.h"
#include "lockstep/train/trainer_step.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep {
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
      elastic_(ElasticTraining::of_this_process(group_)),
      options_(resolved(std::move(options), *group_,
                        elastic_ ? std::optional(elastic_->most_ranks()) : std::nullopt)),
      step_(std::make_unique<TrainerStep>(options_, trainer_on(*group_))),
      shards_(std::make_unique<OptimizerShards>(*step_)),
      progress_(std::make_unique<TrainerProgress>()),
      state_(std::make_unique<TrainerState>(options_, *step_, *shards_, *progress_)),
      evaluation_(std::make_unique<TrainerEvaluation>(options_, *step_, *progress_)),
      callbacks_(std::make_unique<TrainerCallbacks>()) {
  options_.log = [this, log = std::move(options_.log)](const std::string& line) {
    if (group_->rank() != 0 || (elastic_ && !elastic_->has_state())) return;
    callbacks_->hide_bar();
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
                      std::shared_ptr<DataParallelBase> replicas,
                      std::unique_ptr<torch::optim::Optimizer> optimizer,
                      std::function<std::unique_ptr<torch::optim::Optimizer>()> make_optimizer) {
  if (options_.microbatches > 0) {
    const auto* const sharded = dynamic_cast<const optim::ShardedOptimizer*>(optimizer.get());
    if (sharded != nullptr && sharded->owns_shares_of_buckets()) {
      throw UsageError(trainer_on(*group_),
                       "the optimizer was made from the wrapped model and owns shares of its "
                       "buckets, which microbatches do not fill",
                       "make it from the module's parameters and the group");
    }
    microbatches_ =
        std::make_unique<MicrobatchStep>(options_, *group_, module, model, std::move(replicas));
  }
  step_->use(std::move(module), std::move(model), std::move(optimizer));
  shards_->use(std::move(make_optimizer), options_.shard_optimizer);
}

void TrainerCore::average_with(WeightAverage& average) {
  step_->average_with(average);
}

std::vector<EpochSummary> TrainerCore::run_epochs(const detail::RunBatches& run_batches,
                                                  const detail::LoaderBatches& batches,
                                                  const FitOptions& fit) {
  check_fit(*group_, options_, fit, batches.can_begin_again);
  if (elastic_) {
    ElasticTraining::require_first(*group_);
    check_elastic(*group_, options_, batches.can_begin_again, shards_->can_make());
  }
  callbacks_ = std::make_unique<TrainerCallbacks>(fit.callbacks);
  batches_ = batches;
  deal_microbatches(fit.sampler);
  std::optional<DeterministicMode> deterministic;
  if (plan_) deterministic.emplace();
  if (fit.batches_per_epoch && !plan_) batches_ = {.batches = fit.batches_per_epoch};
  if (const auto in_epoch = length(fit).batches_of_epoch();
      in_epoch && options_.progress && group_->rank() == 0 && can_show_status(OutputStream::err)) {
    callbacks_->show_bar(options_.epochs, length(fit).steps_in(*in_epoch), group_->size());
  }
  const auto forget_callbacks = [&] { callbacks_ = std::make_unique<TrainerCallbacks>(); };
  try {
    auto summaries = run(run_batches, fit);
    forget_callbacks();
    return summaries;
  } catch (const std::exception& error) {
    callbacks_->tell(error);
    forget_callbacks();
    throw;
  } catch (...) {
    callbacks_->tell(std::runtime_error("an exception that is no std::exception"));
    forget_callbacks();
    throw;
  }
}

RunLength TrainerCore::length(const FitOptions& fit) const {
  return {options_, *progress_, batches_, fit.sampler, plan_.get(), *group_};
}

std::vector<EpochSummary> TrainerCore::run(const detail::RunBatches& run_batches,
                                           const FitOptions& fit) {
  step_->abandon();  // an earlier call may have ended with an error
  if (microbatches_) microbatches_->abandon();
  *progress_ = {.steps = progress_->steps};
  evaluation_->begin();
  bool resumed = false;
  std::vector<EpochSummary> summaries;
  const auto train = [&] { train_epochs(run_batches, fit, resumed, summaries); };
  if (!elastic_ || elastic_->has_state()) resumed = begin_run(fit);
  if (elastic_) {
    const auto go_on_in = [&](std::shared_ptr<ProcessGroup> group) {
      adopt(std::move(group), fit);
      resumed = true;
      // Epochs that a checkpoint does not include are trained again.
      std::erase_if(summaries,
                    [&](const EpochSummary& summary) { return summary.epoch >= progress_->epoch; });
    };
    if (!elastic_->run(go_on_in, train)) {
      saves_.reset();  // waits until the others have got this rank's part of the last checkpoint
      elastic_->wait_for_end();
    }
    elastic_->note_end();
  } else {
    train();
  }
  if (const std::string why = progress_->end_text(options_, !summaries.empty()); !why.empty()) {
    options_.log(why);
  }
  if (saves_) saves_->wait();
  if (options_.restore_best) restore_best();
  return summaries;
}

// Returns whether training resumes from a checkpoint.
bool TrainerCore::begin_run(const FitOptions& fit) {
  callbacks_->add_tensorboard(options_.tensorboard, *group_, /*others_wrote=*/false, 0);
  check_same_training(*group_, options_, length(fit).schedule(/*resumed=*/false), fit,
                      step_->optimizer(), step_->scaler());
  const bool resumed = open_checkpoints(fit.sampler);
  progress_->watched = watch_text(options_.watch);
  state_->begin_rates(length(fit), resumed);
  if (options_.checkpoints && options_.checkpoints->resume) {
    for (const auto& callback : *callbacks_) callback->resumed(progress_->steps);
    if (fit.resumed) fit.resumed(progress_->steps);
  }
  shards_->begin(progress_->steps, *group_);
  if (elastic_) begin_elastic(fit, resumed);
  return resumed;
}

void TrainerCore::begin_elastic(const FitOptions& fit, bool resumed) {
  const bool shares_memory = options_.distributed.one_copy_per_host;
  if (shards_->are_divided()) {
    options_.log(
        fmt::format("if a rank is lost, its share of the optimizer's state is taken from {}",
                    shares_memory ? "memory that the ranks share, with one copy of the weights"
                                  : "the newest checkpoint"));
  }
  // Also for the ranks that may join a single one.
  if (options_.shard_optimizer && !shares_memory && !resumed) {
    save({}, fit.sampler);
    saves_->wait();
  }
  elastic_->note_steps(progress_->steps);
}

// Collective. Goes on with the ranks of another group.
void TrainerCore::adopt(std::shared_ptr<ProcessGroup> group, const FitOptions& fit) {
  saves_.reset();  // waits until this rank has written what it can of the last checkpoint
  group_ = std::move(group);
  step_->set_context(trainer_on(*group_));
  const std::string state =
      state_->take(length(fit), *fit.sampler, elastic_->has_state(), microbatches_.get(), *group_);
  check_same_training(*group_, options_, length(fit).schedule(/*resumed=*/true), fit,
                      step_->optimizer(), step_->scaler());
  step_->starts_training(step_->trained_parameters());  // as those of the others
  microbatches_.reset();
  take_one_copy(options_, *group_);
  // A newcomer did not know where the others are.
  check_elastic(*group_, options_, batches_.can_begin_again, shards_->can_make());
  const auto model = wrap_model();
  microbatches_ = std::make_unique<MicrobatchStep>(options_, *group_, state_->contents().module,
                                                   model, nullptr);
  deal_microbatches(fit.sampler);
  if (options_.checkpoints) {
    saves_ = state_->make_saves(*group_);
    saves_->continue_run();
  }
  callbacks_->add_tensorboard(options_.tensorboard, *group_, /*others_wrote=*/true,
                              progress_->steps);
  elastic_->note_steps(progress_->steps);
  options_.log(fmt::format("generation {}: {} rank{} after step {}", elastic_->generation(),
                           group_->size(), group_->size() == 1 ? " goes on" : "s go on", state));
}

// All ranks do so together. Those that go on then need no memory of those that leave.
void TrainerCore::leave_generation() {
  shards_->gather(*group_);
  ElasticTraining::leave();
}

void TrainerCore::train_epochs(const detail::RunBatches& run_batches, const FitOptions& fit,
                               bool& resumed, std::vector<EpochSummary>& summaries) {
  std::optional<EpochSummary>& ended = progress_->ended;
  while (ended || (progress_->epoch < options_.epochs && !evaluation_->has_no_patience_left())) {
    if (!ended) {
      begin_epoch(resumed, fit);
      const EpochSummary summary = run_epoch(run_batches, fit, resumed);
      resumed = false;
      finish_epoch(summary);
      if (summaries.empty()) {
        evaluation_->log_what_decides(summary, *group_);
        if (const auto line = step_->unused_parameters_text()) options_.log(*line);
      }
    }
    if (summaries.empty() || summaries.back().epoch != ended->epoch) summaries.push_back(*ended);
    const EpochSummary& summary = summaries.back();
    // These come before the checkpoint, of which they may change contents, such as learning rates.
    if (!progress_->lacks_checkpoint_only) {
      for (const auto& callback : *callbacks_) callback->after_epoch(summary);
      if (fit.end_epoch) fit.end_epoch(summary);
      step_->rates().settle();
      progress_->lacks_checkpoint_only = true;
    }
    if (saves_) save(summary.evaluation, fit.sampler);
    ended.reset();
    progress_->lacks_checkpoint_only = false;
  }
  if (elastic_ && elastic_->any_asks_to_leave()) leave_generation();
}

// Counts the epoch. No rank waits for another in here: an epoch has ended on all of them that have
// its evaluation.
void TrainerCore::finish_epoch(const EpochSummary& summary) {
  evaluation_->note(summary.evaluation, /*keeps_best=*/!saves_);
  if (summary.evaluation && step_->rates().evaluated(*summary.evaluation)) {
    options_.log(fmt::format("the learning rate falls to {:g}", step_->learning_rate()));
  }
  ++progress_->epoch;
  progress_->batches = 0;
  progress_->samples = 0;
  progress_->sums = {};
  progress_->ended = summary;
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
  auto saves = state_->make_saves(*group_);
  if (!options_.checkpoints->resume) saves->require_new_folder();
  const bool loaded = state_->load(*saves, sampler);
  saves_ = std::move(saves);
  return loaded;
}

void TrainerCore::begin_epoch(bool resumed, const FitOptions& fit) {
  const std::int64_t number = progress_->epoch;
  lines_.reset();
  if (options_.batches_per_line > 0 && !callbacks_->has_bar()) {
    lines_.emplace(options_.log, options_.batches_per_line);
  }
  if (!resumed) {
    progress_->batches = 0;
    progress_->samples = 0;
    if (fit.sampler != nullptr) fit.sampler->set_epoch(number);
  }
  for (const auto& callback : *callbacks_) callback->before_epoch(number);
  if (fit.begin_epoch) fit.begin_epoch(number);
  renew_wrapper();
}

// Wraps the module again if the program has frozen or unfrozen parameters.
void TrainerCore::renew_wrapper() {
  const std::string trained = step_->trained_parameters();
  check_same_parameters(*group_, step_->module(), trained);
  if (microbatches_) microbatches_->renew();
  if (!step_->starts_training(trained) || options_.mode != TrainingMode::distributed) return;
  const bool moves = shards_->are_divided() && options_.distributed.one_copy_per_host;
  if (options_.shard_optimizer && (!microbatches_ || (moves && !shards_->can_make()))) {
    throw UsageError(trainer_on(*group_),
                     "parameters were frozen or unfrozen, and a sharded optimizer has the parts of "
                     "those that were trained when it was made",
                     "freeze before making the trainer, or leave .shard_optimizer off");
  }
  if (moves) shards_->gather(*group_);
  if (microbatches_) microbatches_->set_model(nullptr);
  const auto model = wrap_model();
  if (microbatches_) microbatches_->set_model(model);
}

// Wraps the module anew. If that moves the parameters, an optimizer that was gathered follows.
std::shared_ptr<DistributedDataParallelBase> TrainerCore::wrap_model() {
  step_->set_model(nullptr);
  shards_->keep_weights();
  auto model = wrap_again();
  step_->set_model(model);
  shards_->divide(progress_->steps, *group_);
  return model;
}

void TrainerCore::save(const std::optional<double>& score, const EpochSampler* sampler) {
  const TracedSpan span("checkpoint");
  for (const auto& callback : *callbacks_) callback->before_checkpoint(progress_->steps);
  step_->rates().settle();
  step_->rates().note_numbers();
  const bool negative = score && options_.watch.lower_is_better;
  saves_->save(*progress_, negative ? -*score : score, sampler);
  for (const auto& callback : *callbacks_) callback->after_checkpoint(progress_->steps);
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
  } else {
    evaluation_->restore_best(*group_);
  }
}

}  // namespace lockstep
