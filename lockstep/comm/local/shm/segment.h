// SPDX-License-Identifier: BSD-3-Clause
// Memory that several processes map: a memfd, so that it has no name, no size limit of /dev/shm,
// and is gone with the last process that maps it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/unique_fd.h"

namespace lockstep::shm {

// A mapping that undoes itself. Movable.
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

// Makes a zeroed memfd of that size. BackendError, with both figures, if `ranks` ranks that each
// make one would not find the memory: a later write would be a SIGBUS or an OOM kill.
UniqueFd make_memory(std::size_t bytes, int ranks);

}  // namespace lockstep::shm
