// SPDX-License-Identifier: BSD-3-Clause
// The checkpoints of a Trainer: where it stands, saved and found again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// The same on every rank.
struct TrainerProgress {
  std::int64_t steps = 0;  // over all epochs
  std::int64_t epoch = 0;
  // Of this epoch on each rank, and on all ranks together.
  std::int64_t batches = 0;
  std::int64_t samples = 0;
  // Of the evaluations; empty before the first.
  std::optional<double> best = {};
  std::int64_t epochs_since_best = 0;
};

class TrainerSaves {
 public:
  // Collective. The objects of contents and the group must outlive this object.
  TrainerSaves(const TrainerCheckpointOptions& options, CheckpointContents contents,
               ProcessGroup& group, std::function<void(const std::string&)> log);

  // UsageError if the folder has checkpoints of an earlier run.
  void require_new_folder() const;

  // Collective. Where training goes on; nullopt if it begins. The sampler, which
  // may be null, then is at its place. CheckpointError if it is null, and another number of ranks
  // saved.
  std::optional<TrainerProgress> load(EpochSampler* sampler);
  // Collective. The score is that of the epoch that has just ended, if it was evaluated.
  void save(const TrainerProgress& progress, std::optional<double> score,
            const EpochSampler* sampler);
  // Collective. BackendError if the last one could not be written.
  void wait() { folder_.wait(); }

 private:
  TrainerProgress progress_at(const CheckpointPosition& position, EpochSampler* sampler) const;

  CheckpointContents contents_;
  ProcessGroup& group_;
  std::string path_;
  CheckpointFolder folder_;
};

}  // namespace lockstep
