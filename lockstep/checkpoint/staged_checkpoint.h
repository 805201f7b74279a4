// SPDX-License-Identifier: BSD-3-Clause
// A copy of a checkpoint's contents, so that training can continue while it is written. Each rank
// copies its parts; rank 0 then collects the other ranks' parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// The buffer is reused by successive checkpoints. On rank 0 it has the size of the checkpoint, on
// the other ranks the size of their parts.
class StagedCheckpoint {
 public:
  // Copies this rank's parts; replaces what was staged before.
  void copy(const std::vector<FileToSave>& files, int rank);

  // Completes the copy on rank 0. Collective; the group has the ranks that called copy().
  void collect(ProcessGroup& group);

  // Returns the files on rank 0, after collect(); valid until the next copy().
  std::vector<CheckpointFile> files() const;

 private:
  // A piece of memory, and where it belongs in the memory of rank 0.
  struct Run {
    std::int64_t offset;
    std::int64_t bytes;
  };
  struct StagedFile {
    std::string name;
    std::string head;
    std::int64_t offset;  // where the data begins in the memory of rank 0
    std::int64_t bytes;
  };

  void reserve(std::int64_t bytes);
  void receive_from(int rank, ProcessGroup& group);

  std::vector<StagedFile> files_;
  std::vector<Run> runs_;  // the pieces of this rank, in the order of its memory
  at::Tensor memory_;      // bytes
  std::int64_t used_ = 0;  // bytes of memory_
};

}  // namespace lockstep
