// SPDX-License-Identifier: BSD-3-Clause
// A checkpoint that one rank has, from a file or from its objects, is given to other ranks.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Returns the manifest, and the names, types and shapes of the tensors.
nlohmann::json outline_of(const StoredCheckpoint& stored);
// Returns the checkpoint of this outline; its tensors are uninitialized, on the CPU.
StoredCheckpoint with_empty_tensors(const nlohmann::json& outline);
// Collective. Makes each tensor a copy of the tensor on the root.
void broadcast_tensors(const StoredCheckpoint& stored, int root, ProcessGroup& group);

// Collective. Gives the state of rank `donor` to the ranks that lack it, from memory to memory.
// Each rank passes the same donor, and whether it lacks the state. `position` is the position of a
// rank that does not lack it; its step is the donor's step on every rank. Returns the position of
// the donor.
//
// Before anything is sent, the ranks that have the state compare it bit for bit: OutOfSync on every
// rank if it differs. A rank that gets it compares the hash of what has arrived: CheckpointError on
// that rank if it differs, or if it does not fit the contents; these have not changed then.
// PeerLost and other errors of the group leave each rank with its old state or with the new one.
CheckpointPosition share_state(const CheckpointContents& contents,
                               const CheckpointPosition& position, int donor, bool lacks,
                               ProcessGroup& group);

}  // namespace lockstep
