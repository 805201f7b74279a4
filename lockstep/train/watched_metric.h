// SPDX-License-Identifier: BSD-3-Clause
// The metric of an evaluation that decides for a Trainer: which one it is, what it decides, and
// whether anybody has said that lower is better.
#pragma once

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// Returns an option that cannot work without evaluations, such as ".patience"; null if there is
// none.
const char* option_of_evaluation(const TrainerOptions& options);

// Whether evaluations decide something: when training ends, the rates, or which weights are best.
bool evaluations_decide(const TrainerOptions& options);

// Returns "the highest accuracy". `name`: the metric's name, if .watch has none.
std::string watch_text(const WatchedMetric& watch, const std::string& name = "evaluation");

// Returns the metric that .watch names, or the only one if it names none; the end if there is no
// such metric and evaluations decide nothing. UsageError if they do, and there is no such metric,
// or its name is that of a loss and .watch does not say which is better. `trainer`: the context of
// the error.
Metrics::const_iterator watched_metric(const Metrics& metrics, const TrainerOptions& options,
                                       const ErrorContext& trainer);

}  // namespace lockstep
