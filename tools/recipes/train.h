// SPDX-License-Identifier: BSD-3-Clause
// Trains a recipe: one loop for one process and for many.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/recipe_options.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

// Collective, with the same arguments on every rank. single and data_parallel need a group of one.
// All modes make the same steps if the global batch is the same. Rank 0 passes a progress line to
// `log` after each epoch and, without on_step, every 100 steps. Tensors are on group->device(). The
// ranks of `distributed` normalize batches together (SyncBatchNorm); each replica of data_parallel
// normalizes its own part. Seeds torch's default generators.
//
// NonFiniteGradient and OutOfSync on every rank, with the step, if the options request the checks.
// The result says which of the metrics, events, trace and course could not be written.
TrainResult train(const Recipe& recipe, RecipeOptions options,
                  const std::shared_ptr<ProcessGroup>& group,
                  const std::function<void(const std::string&)>& log);

}  // namespace lockstep
