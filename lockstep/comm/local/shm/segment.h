// SPDX-License-Identifier: BSD-3-Clause
// Memory that several processes map. It is a memfd: it has no name, is not limited by the size of
// /dev/shm, and is freed with the last process that maps it.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace lockstep::shm
