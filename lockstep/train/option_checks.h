// SPDX-License-Identifier: BSD-3-Clause
// Checks of a Trainer's options: against each other and the group, and between the ranks, before a
// difference trains another net on each. Also the context of a Trainer's errors.
#pragma once

#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// Returns the context of a Trainer's errors on this rank.
ErrorContext trainer_on(const ProcessGroup& group);

// Returns the options with their defaults resolved: `automatic` becomes the mode that it selects,
// both members check_finite are equal, and log can be called on every rank. UsageError for options
// that contradict each other or the group.
TrainerOptions resolved(TrainerOptions options, const ProcessGroup& group);

// Collective. UsageError on every rank if the options, optimizers, scalers, samplers or callbacks
// of the ranks differ. The error names the first difference, both values and the ranks.
void check_same_training(ProcessGroup& group, const TrainerOptions& options, const FitOptions& fit,
                         const torch::optim::Optimizer& optimizer, const GradScaler& scaler);

// Collective. UsageError on every rank if the ranks pass numbers with different bits. The error
// says `what` the number is, and ends with the remedy.
void check_same_number(ProcessGroup& group, double number, const char* what, const char* remedy);

}  // namespace lockstep
