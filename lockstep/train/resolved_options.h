// SPDX-License-Identifier: BSD-3-Clause
// The options of a Trainer, checked and with their defaults resolved.
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// `automatic` becomes the mode that it stands for, both places of check_finite say the same, and
// log can be called on every rank. UsageError for options that contradict each other or the group.
TrainerOptions resolved(TrainerOptions options, const ProcessGroup& group);

}  // namespace lockstep
