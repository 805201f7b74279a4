// SPDX-License-Identifier: BSD-3-Clause
// Makes sure that all ranks train in the same way, before a difference trains another net on each.
#pragma once

#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// Collective. UsageError on every rank if the ranks' options, optimizers or scalers differ, or the
// samplers and callbacks of fit(); it names the first difference, both values and the ranks.
void check_same_training(ProcessGroup& group, const TrainerOptions& options, const FitOptions& fit,
                         const torch::optim::Optimizer& optimizer, const GradScaler& scaler);

// Collective. UsageError on every rank if the ranks pass numbers with different bits. `what` is
// what the number is, and the remedy follows.
void check_same_number(ProcessGroup& group, double number, const char* what, const char* remedy);

}  // namespace lockstep
