// SPDX-License-Identifier: BSD-3-Clause
// What a run's objects put into a checkpoint, and take out of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/stored_file.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct CheckpointSnapshot {
  // With this rank's parts, which share the objects' memory.
  std::vector<StoredFile> files;
  // Without the files' hashes.
  nlohmann::json manifest;
};

// Not collective. UsageError for contents that a checkpoint cannot keep, before training has begun.
void check_savable(const CheckpointContents& contents);

// Collective. UsageError for contents that cannot be saved.
CheckpointSnapshot snapshot(const CheckpointContents& contents, const CheckpointPosition& position,
                            ProcessGroup& group);

// CheckpointError if the manifest has none.
CheckpointPosition position_in(const StoredCheckpoint& stored);

// A checkpoint on its way into the contents: module and tensors have been restored, and the rest
// is only known to fit. One of the functions must be called, while the contents exist.
struct PreparedRestore {
  // Restores optimizer, scaler, scheduler and random numbers.
  std::function<void()> complete;
  // Brings module and tensors back, since another rank has failed.
  std::function<void()> undo;
};

// Not collective, although every rank calls it. CheckpointError, and nothing has changed, if the
// contents do not fit.
PreparedRestore prepare_restore(const StoredCheckpoint& stored, const CheckpointContents& contents,
                                const ProcessGroup& group);

}  // namespace lockstep
