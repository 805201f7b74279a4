// SPDX-License-Identifier: BSD-3-Clause
// What a training's objects put into a checkpoint, and take out of it.
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

// Collective. UsageError for contents that cannot be saved.
CheckpointSnapshot snapshot(const CheckpointContents& contents, const CheckpointPosition& position,
                            ProcessGroup& group);

// CheckpointError if the manifest has none.
CheckpointPosition position_in(const StoredCheckpoint& stored);

// Not collective, although every rank calls it. CheckpointError, and nothing has changed, if the
// contents do not fit. Returns a function that brings module and tensors back, in case that another
// rank fails.
std::function<void()> restore(const StoredCheckpoint& stored, const CheckpointContents& contents,
                              const ProcessGroup& group);

}  // namespace lockstep
