// SPDX-License-Identifier: BSD-3-Clause
// Finds the first option that is at fault.
#include "lockstep/train/resolved_options.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/train/learning_rate.h"

namespace lockstep {
namespace {

struct OptionRule {
  bool is_broken;
  std::string fault;
};

std::vector<OptionRule> rules_for(const TrainerOptions& options, const ProcessGroup& group) {
  const bool distributed = options.mode == TrainingMode::distributed;
  const bool data_parallel = options.mode == TrainingMode::data_parallel;
  const bool divides = !options.distributed.whole_gradients;
  const bool compares = options.check_in_sync > 0;
  const double max_norm = options.max_grad_norm.value_or(0);
  const std::int64_t every = options.checkpoints ? options.checkpoints->every_steps : 0;
  return {
      {options.epochs < 1, fmt::format("{} epochs; train for at least 1", options.epochs)},
      {options.accumulation_steps < 1,
       fmt::format("accumulation_steps is {}; a step needs at least 1 batch",
                   options.accumulation_steps)},
      {options.patience < 0,
       fmt::format("patience is {}; give a number of epochs, or 0", options.patience)},
      {!(max_norm >= 0), fmt::format("max_grad_norm is {}; it must not be negative", max_norm)},
      {!distributed && group.size() > 1,
       "single and data_parallel train in one process; use TrainingMode::distributed"},
      {divides && !options.shard_optimizer, "divided gradients need .shard_optimizer = true"},
      {!data_parallel && options.data_parallel.replicas > 0,
       fmt::format("{} replicas need TrainingMode::data_parallel", options.data_parallel.replicas)},
      {every < 0, fmt::format("checkpoints every {} steps; give a positive number, or 0", every)},
      {options.batches_per_line < 0 || options.check_in_sync < 0,
       fmt::format("a line every {} batches, ranks compared every {} steps; give positive "
                   "numbers, or 0",
                   options.batches_per_line, options.check_in_sync)},
      {compares && !distributed,
       "check_in_sync compares ranks, and needs TrainingMode::distributed"},
      {compares && divides, "check_in_sync compares gradients; leave whole_gradients on"},
      {options.amp == at::kHalf && options.check_finite,
       "training in float16 skips steps that overflow; leave out check_finite"},
  };
}

}  // namespace

TrainerOptions resolved(TrainerOptions options, const ProcessGroup& group) {
  if (options.mode == TrainingMode::automatic) {
    options.mode = group.size() > 1 ? TrainingMode::distributed : TrainingMode::single;
  }
  options.check_finite = options.check_finite || options.distributed.check_finite;
  options.distributed.check_finite = options.check_finite;
  if (group.rank() != 0 || !options.log) options.log = [](const std::string&) {};

  const std::vector<OptionRule> rules = rules_for(options, group);
  const auto broken = std::ranges::find(rules, true, &OptionRule::is_broken);
  if (broken != rules.end()) {
    throw UsageError(
        fmt::format("[Trainer] rank {} of {}: {}", group.rank(), group.size(), broken->fault));
  }
  check_schedule(options.schedule);
  return options;
}

}  // namespace lockstep
