// SPDX-License-Identifier: BSD-3-Clause
// Counts batches and steps from what the loader, the sampler and the plan of microbatches tell.
#include "lockstep/train/run_length.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {
namespace {

std::int64_t quotient_rounded_up(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace

std::optional<std::int64_t> RunLength::batches_of_epoch(bool left) const {
  if (plan != nullptr) {
    const std::int64_t samples = sampler->cursor_after(0).samples;
    return plan->steps_in(left ? samples - progress.samples : samples);
  }
  const std::optional<std::int64_t> known = batches.batches;
  const std::optional<std::int64_t> batch_size = batches.batch_size;
  if (sampler == nullptr || (!left && !batch_size)) {
    if (!known) return {};
    return *known - (left ? progress.batches : 0);
  }
  const auto all = static_cast<std::int64_t>(sampler->size());
  const auto samples = left ? static_cast<std::int64_t>(sampler->indices().size()) : all;
  if (batch_size) {
    return batches.drop_last ? samples / *batch_size : quotient_rounded_up(samples, *batch_size);
  }
  if (!known || all == 0) return {};
  return quotient_rounded_up(samples * *known, all);
}

std::int64_t RunLength::steps_in(std::int64_t batches_in_epoch) const {
  return quotient_rounded_up(batches_in_epoch, options.accumulation_steps);
}

std::optional<std::int64_t> RunLength::steps(bool resumed) const {
  const std::int64_t epochs_left = options.epochs - progress.epoch;
  const auto in_epoch = batches_of_epoch();
  const auto in_first = batches_of_epoch(/*left=*/resumed);
  if (!in_epoch || !in_first) return {};
  if (epochs_left <= 0) return progress.steps;
  return progress.steps + steps_in(*in_first) + (epochs_left - 1) * steps_in(*in_epoch);
}

std::optional<optim::LRSchedule> RunLength::schedule(bool resumed) const {
  if (!options.lr_schedule) return {};
  std::int64_t all_steps = 0;  // which a value does not need
  if (options.lr_schedule.needs_steps()) {
    const auto found = steps(resumed);
    if (!found) {
      throw UsageError(trainer_on(group),
                       "lr_schedule needs the number of all steps, and this range does not say how "
                       "many batches an epoch has",
                       "give fit() the .sampler of the loader, or .batches_per_epoch");
    }
    all_steps = *found;
  }
  optim::LRSchedule made = options.lr_schedule.of(all_steps);
  if (options.lr_scale != 1 && made.ignores_initial_lr()) {
    throw UsageError(
        trainer_on(group),
        fmt::format("lr_scale is {}, which a OneCycleLR ignores: its rates are its own",
                    options.lr_scale),
        "leave lr_scale out, and multiply .max_lr");
  }
  return made;
}

void RunLength::require_rates(const optim::LRSchedule& planned, bool resumed) const {
  if (progress.samples > 0) return;  // the number of batches left may be an estimate
  const auto all_steps = steps(resumed);
  const auto last = planned.last_step();
  if (!all_steps || !last || *last >= *all_steps) return;
  throw UsageError(ErrorDetails{
      .cause =
          fmt::format("lr_schedule ends at step {}, and training at step {}", *last, *all_steps),
      .remedy = "set .total_steps of the OneCycleLR to the number of all steps, which a function "
                "as .lr_schedule gets"});
}

}  // namespace lockstep
