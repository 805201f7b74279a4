// SPDX-License-Identifier: BSD-3-Clause
// Memory that several processes map, and tensors in it. An all-reduce of such a tensor copies
// nothing in or out. The memory is a memfd: it has no name, is not limited by the size of /dev/shm,
// and is freed with the last process that maps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/local/control_block.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::shm {

// Owns a mapping, and unmaps it. Movable.
class Mapping {
 public:
  Mapping() = default;
  // Maps the whole memfd. BackendError if the system refuses.
  Mapping(int fd, std::size_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Makes a zeroed memfd of this size. BackendError, with both figures, if there is not enough memory
// for `ranks` ranks to make one each: a later write would cause a SIGBUS or an OOM kill.
UniqueFd make_memory(std::size_t bytes, int ranks);

// The segments in use. Thread-safe. Shared by the group and its tensors, since a tensor may outlive
// its group.
class SharedTensors : public std::enable_shared_from_this<SharedTensors> {
 public:
  // Makes a tensor from the mappings, one for each rank; mappings[rank] is this process's own. The
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
