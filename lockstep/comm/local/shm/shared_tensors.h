// SPDX-License-Identifier: BSD-3-Clause
// Tensors in memory that every rank maps. An all-reduce of such a tensor copies nothing in or out.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/local/control_block.h"
#include "lockstep/comm/local/shm/segment.h"

namespace lockstep::shm {

// The segments in use. Thread-safe. Shared by the group and its tensors, since a tensor may outlive
// its group.
class SharedTensors : public std::enable_shared_from_this<SharedTensors> {
 public:
  // Makes a tensor from the mappings, one for each rank; mappings[rank] is this process's. The
  // memory is released with the tensor's storage.
  at::Tensor adopt(std::uint64_t segment, std::vector<Mapping> mappings, int rank,
                   at::IntArrayRef sizes, const at::TensorOptions& options);

  // Where the bytes lie; segment 0 if no segment contains them.
  local::Location location_of(const void* data, std::int64_t bytes) const;
  // The same place in a rank's memory, as mapped here; null if the segment is not in use here.
  std::byte* address(int rank, const local::Location& location) const;

 private:
  struct Entry {
    std::uint64_t segment;
    int rank;
    std::vector<Mapping> mappings;
  };

  void release(std::uint64_t segment);

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::shm
