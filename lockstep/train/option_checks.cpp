// SPDX-License-Identifier: BSD-3-Clause
// Finds the first option at fault.
#include "lockstep/train/option_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/rendezvous/elastic_job.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep {
namespace {

struct OptionRule {
  bool is_broken;
  std::string fault;
  std::string remedy;
};

std::vector<OptionRule> rules_for(const TrainerOptions& options, const ProcessGroup& group,
                                  std::optional<int> most_ranks) {
  const bool distributed = options.mode == TrainingMode::distributed;
  const bool data_parallel = options.mode == TrainingMode::data_parallel;
  const bool divides = !options.distributed.whole_gradients;
  const bool one_copy = options.distributed.one_copy_per_host;
  const bool compares = options.check_in_sync > 0;
  const double max_norm = options.max_grad_norm.value_or(0);
  const double ema_decay = options.ema_decay.value_or(0);
  const std::int64_t microbatches = options.microbatches;
  const bool parted = microbatches > 0;
  const bool balances = options.balance_load;
  const std::int64_t every = options.checkpoints ? options.checkpoints->every_steps : 0;
  return {
      {options.epochs < 1, fmt::format("{} epochs", options.epochs), "train for at least 1"},
      {options.accumulation_steps < 1,
       fmt::format("accumulation_steps is {}", options.accumulation_steps),
       "a step needs at least 1 batch"},
      {options.patience < 0, fmt::format("patience is {}", options.patience),
       "give a number of epochs, or 0"},
      {!(options.lr_scale > 0 && std::isfinite(options.lr_scale)),
       fmt::format("lr_scale is {}", options.lr_scale),
       "it must be positive, such as group->size()"},
      {!(ema_decay >= 0 && ema_decay < 1), fmt::format("ema_decay is {}", ema_decay),
       "it must be from 0 to below 1, such as 0.999"},
      {!(max_norm >= 0), fmt::format("max_grad_norm is {}", max_norm), "it must not be negative"},
      {!distributed && group.size() > 1, "single and data_parallel train in one process",
       "use TrainingMode::distributed"},
      {divides && !options.shard_optimizer, "divided gradients need .shard_optimizer = true", {}},
      {one_copy && !options.shard_optimizer, "one_copy_per_host needs .shard_optimizer = true", {}},
      {one_copy && std::max(group.size(), most_ranks.value_or(1)) > 1 && options.ema_decay &&
           options.evaluate_ema,
       "the averaged weights are evaluated in the model, of which the ranks have one copy",
       most_ranks ? "set .evaluate_ema = false, or leave out .shard_optimizer"
                  : "set .evaluate_ema = false, or leave one_copy_per_host off"},
      {!data_parallel && options.data_parallel.replicas > 0,
       fmt::format("{} replicas need TrainingMode::data_parallel", options.data_parallel.replicas),
       {}},
      {every < 0, fmt::format("checkpoints every {} steps", every), "give a positive number, or 0"},
      {options.restore_best && options.checkpoints && options.checkpoints->keep_best < 1,
       "restore_best needs the checkpoint of the best evaluation", "set keep_best to at least 1"},
      {options.batches_per_line < 0 || options.check_in_sync < 0,
       fmt::format("a line every {} batches, ranks compared every {} steps",
                   options.batches_per_line, options.check_in_sync),
       "give positive numbers, or 0"},
      {compares && !distributed,
       "check_in_sync compares ranks, and needs TrainingMode::distributed",
       {}},
      {compares && (divides || (one_copy && !parted)), "check_in_sync compares gradients",
       "leave whole_gradients on and one_copy_per_host off"},
      {microbatches < 0, fmt::format("microbatches is {}", microbatches),
       "give a positive number, or 0"},
      {parted && microbatches < group.size(),
       fmt::format("{} microbatches cannot be divided among {} ranks", microbatches, group.size()),
       "give at least one for each rank"},
      {parted && most_ranks && microbatches < *most_ranks,
       fmt::format("{} microbatches cannot be divided among {} ranks, to which this job may be "
                   "resized",
                   microbatches, most_ranks.value_or(0)),
       "give at least one for each rank, or a smaller MAX in --elastic MIN:MAX"},
      {parted && microbatches < options.data_parallel.replicas,
       fmt::format("{} microbatches cannot be divided among {} replicas", microbatches,
                   options.data_parallel.replicas),
       "give at least one for each replica"},
      {parted && options.accumulation_steps > 1,
       "microbatches and accumulation_steps both divide a step",
       "multiply microbatches by the accumulation steps"},
      {parted && divides, "microbatches give every rank the whole gradients",
       "leave whole_gradients on"},
      {parted && options.sync_batchnorm,
       "sync_batchnorm normalizes over ranks, and with microbatches a result does not depend on "
       "the ranks",
       "leave it out: BatchNorm normalizes over a microbatch"},
      {parted && options.evaluation_buffers == EvaluationBuffers::mean,
       "a mean of buffers depends on the number of ranks, and with microbatches their buffers are "
       "equal",
       "leave .evaluation_buffers at of_rank_0"},
      {parted && options.amp == at::kHalf, "microbatches cannot be trained in float16",
       "use bfloat16, which needs no scaling"},
      {!parted && options.loss_reduction == LossReduction::sum,
       "a sum of losses would become the mean over the ranks' sums", "set .microbatches"},
      {balances && !parted, "balance_load moves microbatches from rank to rank",
       "set .microbatches, or leave balance_load off"},
      {balances && data_parallel,
       "balance_load moves microbatches from rank to rank, and replicas share them equally",
       "use TrainingMode::distributed, or leave balance_load off"},
      {balances && !most_ranks && group.size() > 1 && microbatches == group.size(),
       fmt::format("each of {} ranks has 1 microbatch, of which balance_load can move none",
                   group.size()),
       "raise .microbatches, or leave balance_load off"},
      {options.amp == at::kHalf && options.check_finite,
       "training in float16 skips steps that overflow", "leave out check_finite"},
  };
}

bool may_have_several_hosts() {
  const auto job = ElasticJob::of_this_process();
  return job && job->on_several_hosts();
}

// Whether the ranks of this elastic job can recover what is lost from memory that they share, also
// those that may join a single one. A host that is lost takes its memory with it. nullopt in a
// newcomer that has not met the others.
std::optional<bool> ranks_share_memory(const ProcessGroup& group) {
  if (const auto job = ElasticJob::of_this_process(); job && job->in_lobby()) return std::nullopt;
  if (may_have_several_hosts()) return false;
  if (group.size() > 1) return group.backend() == "shm";
  const std::string& requested = group.requested_backend();
  return group.device().is_cpu() && (requested == "auto" || requested == "shm");
}

}  // namespace

ErrorContext trainer_on(const ProcessGroup& group) {
  return group.context("Trainer");
}

TrainerOptions resolved(TrainerOptions options, const ProcessGroup& group,
                        std::optional<int> most_ranks) {
  if (options.mode == TrainingMode::automatic) {
    options.mode =
        group.size() > 1 || most_ranks ? TrainingMode::distributed : TrainingMode::single;
  }
  options.check_finite = options.check_finite || options.distributed.check_finite;
  options.distributed.check_finite = options.check_finite;
  if (!options.log) options.log = [](const std::string&) {};
  if (most_ranks) take_one_copy(options, group);

  const std::vector<OptionRule> rules = rules_for(options, group, most_ranks);
  const auto broken = std::ranges::find(rules, true, &OptionRule::is_broken);
  if (broken != rules.end()) {
    throw UsageError(trainer_on(group), broken->fault, broken->remedy);
  }
  return options;
}

void take_one_copy(TrainerOptions& options, const ProcessGroup& group) {
  if (options.shard_optimizer && options.microbatches > 0 && ranks_share_memory(group) == true) {
    options.distributed.one_copy_per_host = true;
  }
}

void check_elastic(const ProcessGroup& group, const TrainerOptions& options, bool can_begin_again,
                   bool can_make_optimizer) {
  const bool shares_memory = ranks_share_memory(group).value_or(true);
  const std::string where =
      may_have_several_hosts()
          ? "it may have several hosts"
          : fmt::format("its ranks share no memory (backend {})", group.requested_backend());
  const OptionRule rules[] = {
      {options.microbatches == 0,
       "this job is elastic, and without microbatches the result depends on the number of ranks",
       "set .microbatches, or start the job without --elastic"},
      {options.mode != TrainingMode::distributed,
       "this job is elastic, and the modes single and data_parallel have no ranks that could go on",
       "leave .mode out, or start the job without --elastic"},
      {options.distributed.one_copy_per_host && !shares_memory,
       fmt::format("this job is elastic, and {}, so one copy of the parameters cannot be recovered",
                   where),
       "leave .one_copy_per_host out; with .checkpoints, .shard_optimizer may stay"},
      {options.shard_optimizer && !shares_memory && !options.checkpoints,
       fmt::format(
           "this job is elastic, and {}, so a rank's share of the optimizer's state is lost "
           "with it",
           where),
       "set .checkpoints, from which it is then taken, or leave out .shard_optimizer"},
      {options.shard_optimizer && !can_make_optimizer,
       "this job is elastic, and an optimizer that the program has made cannot be sharded over "
       "other ranks",
       "give optimize_with() its type and options or a function that makes it, or leave out "
       ".shard_optimizer"},
      {options.restore_best && !options.checkpoints,
       "this job is elastic, and the best weights are in the memory of each rank, which a "
       "replacement lacks",
       "set .checkpoints, or leave .restore_best out"},
      {!can_begin_again,
       "this job is elastic, and a loop over libtorch's data loader cannot begin again while its "
       "workers load",
       "use a DataLoader, a MemoryLoader, or no workers"}};
  const auto* const broken = std::ranges::find(rules, true, &OptionRule::is_broken);
  if (broken != std::end(rules)) {
    throw UsageError(trainer_on(group), broken->fault, broken->remedy);
  }
}

void check_fit(const ProcessGroup& group, const TrainerOptions& options, const FitOptions& fit,
               bool can_begin_again) {
  if (options.balance_load && !can_begin_again) {
    throw UsageError(
        trainer_on(group),
        "balance_load deals the rest of an epoch anew, and a loop over libtorch's data "
        "loader cannot begin again while its workers load",
        "use a DataLoader, a MemoryLoader, or no workers");
  }
  if (const char* const option = option_of_evaluation(options);
      option != nullptr && !fit.evaluate) {
    throw UsageError(trainer_on(group), fmt::format("{} needs the function evaluate", option),
                     "give fit() .evaluate, or leave the option out");
  }
  const auto null = std::ranges::find(fit.callbacks, nullptr);
  if (null == fit.callbacks.end()) return;
  throw UsageError(trainer_on(group),
                   fmt::format("callback {} of fit() is null", null - fit.callbacks.begin()),
                   "make an object for it, or leave it out");
}

}  // namespace lockstep
