// SPDX-License-Identifier: BSD-3-Clause
// A copy of what a checkpoint will hold, so that training can go on while it is written. Each rank
// copies its parts; rank 0 then collects those of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/stored_file.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Its memory serves one checkpoint after another. On rank 0 it has the size of the checkpoint, on
// other ranks that of their parts.
class StagedCheckpoint {
 public:
  // Replaces what was staged before.
  void copy(const std::vector<StoredFile>& files, int rank);

  // Collective over a group whose rank 0 is that of copy(): completes rank 0's copy.
  void collect(ProcessGroup& group);

  // On rank 0, after collect(); valid until the next copy().
  std::vector<CheckpointFile> files() const;

 private:
  // A piece of memory, and its place in rank 0's.
  struct Run {
    std::int64_t offset;
    std::int64_t bytes;
  };
  struct StagedFile {
    std::string name;
    std::string head;
    std::int64_t offset;  // of its data in rank 0's memory
    std::int64_t bytes;
  };

  void reserve(std::int64_t bytes);
  void receive_from(int rank, ProcessGroup& group);

  std::vector<StagedFile> files_;
  std::vector<Run> runs_;  // this rank's, in the order in which they lie in its memory
  at::Tensor memory_;      // bytes
  std::int64_t used_ = 0;  // of it
};

}  // namespace lockstep
