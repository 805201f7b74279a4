// SPDX-License-Identifier: BSD-3-Clause
// Brings the ranks of an elastic job to one state after the job has lost or got ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/train/trainer_progress.h"

namespace lockstep {

struct Alignment {
  // The rank that has come furthest; of several, the lowest.
  int donor = 0;
  // The ranks that had come less far, or had no state, and now have the state of the donor.
  std::vector<int> receivers = {};

  // "; rank 2 has got the state of rank 0", the end of a line; empty if no rank got anything.
  std::string text() const;
};

// Collective. Compares how far the ranks have come, and gives the contents and the progress of the
// donor, and which parameters it trains, to the ranks that have come less far. `has_state`: false
// on a rank that has just been started. Moves the sampler of each rank to the progress. Error if no
// rank has a state; otherwise throws what share_state() throws.
Alignment align_ranks(TrainerProgress& progress, bool has_state, const CheckpointContents& contents,
                      EpochSampler& sampler, ProcessGroup& group);

}  // namespace lockstep
