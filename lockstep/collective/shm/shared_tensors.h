// SPDX-License-Identifier: BSD-3-Clause
// Tensors in memory that every rank maps: an all-reduce of one copies nothing in or out.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/collective/shm/segment.h"

namespace lockstep::shm {

// Where a tensor's bytes are, in this rank's view of every rank's memory.
struct SharedPlace {
  std::uint64_t segment = 0;
  std::int64_t offset = 0;
  // One address for each rank, the tensor's first byte there.
  std::vector<std::byte*> addresses;
};

// The segments that are in use. Thread-safe. Shared by the group and its tensors, since a tensor
// may outlive its group.
class SharedTensors : public std::enable_shared_from_this<SharedTensors> {
 public:
  // Makes a tensor of the mappings, one for each rank; `rank`'s is this process's. The memory goes
  // with the tensor's storage.
  at::Tensor adopt(std::uint64_t segment, std::vector<Mapping> mappings, int rank,
                   at::IntArrayRef sizes, const at::TensorOptions& options);

  // Fills in the place if the bytes lie in one of the segments; false if not.
  bool find(const void* data, std::int64_t bytes, SharedPlace& place) const;

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
