// SPDX-License-Identifier: BSD-3-Clause
// Turns the contents of a checkpoint into files and a manifest, and restores them from these.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct CheckpointSnapshot {
  // The files, with the parts that this rank provides; these share the objects' memory.
  std::vector<FileToSave> files;
  // The manifest, still without the files' sizes and hashes.
  nlohmann::json manifest;
};

// Not collective. UsageError for contents that cannot be saved, before training has begun.
void check_savable(const CheckpointContents& contents);

// Collective. UsageError for contents that cannot be saved.
CheckpointSnapshot snapshot(const CheckpointContents& contents, const CheckpointPosition& position,
                            ProcessGroup& group);

// Returns the contents as a checkpoint that was never written: its tensors share the memory of the
// objects, or are copies. `self` is a group of this process alone. UsageError for contents that
// cannot be saved.
StoredCheckpoint in_memory(const CheckpointContents& contents, const CheckpointPosition& position,
                           ProcessGroup& self);
// Whether the file's tensors differ between ranks that are at the same position.
bool is_of_one_rank(const std::string& file);

// CheckpointError if the manifest lacks a part of the position.
CheckpointPosition position_in(const StoredCheckpoint& stored);

// A half-restored checkpoint: module and tensors have been restored; the other contents have only
// been checked. Call one of the functions while the contents exist.
struct PreparedRestore {
  // Restores optimizer, scaler, scheduler and generators.
  std::function<void()> complete;
  // Restores the former module and tensors, if another rank has failed.
  std::function<void()> undo;
};

// Every rank calls this, but it is not collective. CheckpointError if the contents do not fit; they
// are then unchanged.
PreparedRestore prepare_restore(const StoredCheckpoint& stored, const CheckpointContents& contents,
                                const ProcessGroup& group);

// Drops the tensors of the optimizer and of the random numbers.
void keep_weights(StoredCheckpoint& stored);

// Restores the module and those tensors that the contents have; `complete` does nothing. Throws and
// leaves as prepare_restore() does.
PreparedRestore restore_weights(const StoredCheckpoint& stored, const CheckpointContents& contents);

}  // namespace lockstep
