// SPDX-License-Identifier: BSD-3-Clause
// How long a run of a Trainer is, in batches and steps, and the schedule of learning rates that
// follows from it.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/train/loader_batches.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/train/trainer_progress.h"

namespace lockstep {

// What a fit() knows of its length.
struct RunLength {
  const TrainerOptions& options;
  const TrainerProgress& progress;
  const detail::LoaderBatches& batches;
  const EpochSampler* sampler;  // may be null
  const MicrobatchPlan* plan;   // null without .microbatches
  const ProcessGroup& group;

  // Returns the number of batches of an epoch or, if `left`, of its rest; nullopt if it is unknown.
  std::optional<std::int64_t> batches_of_epoch(bool left = false) const;
  // Returns the number of optimizer steps in so many batches of an epoch.
  std::int64_t steps_in(std::int64_t batches_in_epoch) const;
  // Returns the number of steps that are done and left; nullopt if it is unknown. `resumed`: the
  // run continues in the middle of an epoch.
  std::optional<std::int64_t> steps(bool resumed) const;
  // Returns the schedule of a run that has come to `progress`; nullopt if there is none. UsageError
  // if it needs a number of steps that is unknown, or ignores .lr_scale.
  std::optional<optim::LRSchedule> schedule(bool resumed) const;
  // UsageError, without a context, for a schedule that ends before the run does, if the number of
  // steps is known.
  void require_rates(const optim::LRSchedule& planned, bool resumed) const;
};

}  // namespace lockstep
