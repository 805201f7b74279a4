// SPDX-License-Identifier: BSD-3-Clause
// Checks of a Trainer's options, against each other and the group. Also the context of a Trainer's
// errors.
#pragma once

#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// Returns the context of a Trainer's errors on this rank.
ErrorContext trainer_on(const ProcessGroup& group);

// Returns the options with their defaults resolved: `automatic` becomes the mode that it selects,
// both members check_finite are equal, and log can be called. `most_ranks`: in an elastic job, the
// most ranks that it may have. UsageError for options that contradict each other or the group.
TrainerOptions resolved(TrainerOptions options, const ProcessGroup& group,
                        std::optional<int> most_ranks = {});

// UsageError if a fit() with these options cannot go on with other ranks. `can_begin_again`:
// whether a loop over the batches can begin again after it was left early.
// `can_make_optimizer`: whether the trainer can make the optimizer again.
void check_elastic(const ProcessGroup& group, const TrainerOptions& options, bool can_begin_again,
                   bool can_make_optimizer);

// For an elastic job on one host: the optimizer's state is recovered from the memory that ranks
// share, if they do, and that needs one copy of the parameters.
void take_one_copy(TrainerOptions& options, const ProcessGroup& group);

// UsageError if fit() lacks the function that an option needs, or has a null callback, or if an
// option needs a loop that can begin again after it was left early and this one cannot.
void check_fit(const ProcessGroup& group, const TrainerOptions& options, const FitOptions& fit,
               bool can_begin_again);

}  // namespace lockstep
