// SPDX-License-Identifier: BSD-3-Clause
// What one call does with the bytes of one tensor. The engine says when; a transfer knows where
// from and where to. Its payload is what this rank shows to the others, cut into chunks where it is
// large; a payload's elements lie at its beginning.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lockstep/collective/call.h"
#include "lockstep/collective/shm/shared_tensors.h"

namespace lockstep::shm {

// A run of a call's elements.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

class Transfer {
 public:
  virtual ~Transfer() = default;

  const Call& call() const { return call_; }
  // Bytes that a rank shows for each element of the call.
  std::int64_t payload_bytes_per_element() const { return bytes_per_element_; }
  std::int64_t payload_bytes() const { return call_.elements * bytes_per_element_; }
  // Set for a tensor that every rank maps.
  const std::optional<SharedPlace>& shared_place() const { return shared_place_; }

  // Writes the chunk's payload to the place.
  virtual void copy_in(Chunk chunk, std::byte* place) = 0;
  // All ranks' payloads are there. Reads them, and writes results to this rank's tensor.
  virtual void combine(Chunk chunk, std::span<std::byte* const> places) = 0;

  // The same in two steps for large payloads: each rank may write its share into all places, and
  // takes the whole from its own place once every rank has done so.
  virtual void combine_share(Chunk chunk, std::span<std::byte* const> places) {
    combine(chunk, places);
  }
  virtual void copy_out(Chunk, const std::byte*) {}

  // For tensors with a shared place: reduces this rank's share where it lies, for all ranks.
  virtual void combine_in_place() {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  void mark_done() { done_.store(true, std::memory_order_release); }

 protected:
  Transfer(const Call& call, std::int64_t bytes_per_element)
      : call_(call), bytes_per_element_(bytes_per_element) {}

  std::optional<SharedPlace> shared_place_;

 private:
  friend class Engine;  // numbers the call when it takes its turn

  Call call_;
  std::int64_t bytes_per_element_;
  std::atomic<bool> done_ = false;
};

}  // namespace lockstep::shm
