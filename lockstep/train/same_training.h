// SPDX-License-Identifier: BSD-3-Clause
// Checks that the ranks train alike, before a difference trains another net on each.
#pragma once

#include <optional>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// Collective. UsageError on every rank if the options, optimizers, scalers, samplers or callbacks
// of the ranks differ. The error names the first difference, both values and the ranks.
// `schedule`: the schedule of a whole run, if there is one.
void check_same_training(ProcessGroup& group, const TrainerOptions& options,
                         const std::optional<optim::LRSchedule>& schedule, const FitOptions& fit,
                         const torch::optim::Optimizer& optimizer, const GradScaler& scaler);

// Collective. UsageError on every rank if the ranks pass numbers with different bits. The error
// says `what` the number is, and ends with the remedy.
void check_same_number(ProcessGroup& group, double number, const char* what, const char* remedy);

// Collective. UsageError on every rank if the ranks train different parameters of the module.
// `trained` has a 1 for each parameter that this rank trains and a 0 for each frozen one, in the
// order of distinct_named_parameters().
void check_same_parameters(ProcessGroup& group, const torch::nn::Module& module,
                           const std::string& trained);

}  // namespace lockstep
