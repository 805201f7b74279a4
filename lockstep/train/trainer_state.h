// SPDX-License-Identifier: BSD-3-Clause
// The state that a Trainer trains from: of a checkpoint, or in an elastic job of the other ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/train/microbatch_step.h"
#include "lockstep/train/optimizer_shards.h"
#include "lockstep/train/run_length.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/train/trainer_progress.h"
#include "lockstep/train/trainer_step.h"

namespace lockstep {

class TrainerState {
 public:
  // Keeps references.
  TrainerState(const TrainerOptions& options, TrainerStep& step, OptimizerShards& shards,
               TrainerProgress& progress)
      : options_(options), step_(step), shards_(shards), progress_(progress) {}

  // Everything that training changes.
  CheckpointContents contents() const;
  // Collective. Needs .checkpoints. The objects must outlive what it returns.
  std::unique_ptr<TrainerSaves> make_saves(ProcessGroup& group) const;
  // Collective. Takes the state of the newest checkpoint; begin_rates() comes next. Returns whether
  // there is one.
  bool load(TrainerSaves& saves, EpochSampler* sampler);
  // Sets the rates of the next step of this run. `resumed`: the state was loaded.
  void begin_rates(const RunLength& run, bool resumed);

  // Collective over the ranks with which an elastic job goes on. Gives all of them one state: of
  // the rank that has come furthest, or if each had a share of the optimizer's and some are lost,
  // of the newest checkpoint. `has_state`: false on a newcomer. Abandons a step in `microbatches`,
  // which may be null. Returns the last step, and where the state comes from. Can be called again
  // after an error of the group.
  std::string take(const RunLength& run, EpochSampler& sampler, bool has_state,
                   MicrobatchStep* microbatches, ProcessGroup& group);

 private:
  std::string go_back_to_checkpoint(const std::vector<int>& lost, const RunLength& run,
                                    EpochSampler& sampler, ProcessGroup& group);

  const TrainerOptions& options_;
  TrainerStep& step_;
  OptimizerShards& shards_;
  TrainerProgress& progress_;
};

}  // namespace lockstep
