// SPDX-License-Identifier: BSD-3-Clause
// What one collective does with the bytes of one tensor. The queue says when; a transfer knows
// where from and where to. Its payload is what this rank shows to the others, cut into chunks where
// it is large; a payload's elements lie at its beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/core/piece.h"
#include "lockstep/comm/core/task.h"

namespace lockstep::local {

// A chunk is a range of the call's elements.
class Transfer : public Task {
 public:
  // Bytes that a rank shows for each element of the call.
  std::int64_t payload_bytes_per_element() const { return bytes_per_element_; }
  std::int64_t payload_bytes() const { return call().elements * bytes_per_element_; }

  // Nothing to show and nothing to combine.
  virtual bool empty() const { return call().elements == 0; }

  // Writes the chunk's payload to the place.
  virtual void copy_in(ElementRange chunk, std::byte* payload) = 0;
  // All ranks' payloads are there. Reads them, and writes results to this rank's tensor.
  virtual void combine(ElementRange chunk, std::span<std::byte* const> payloads) = 0;

  // The same in two steps for large payloads: each rank may write its share into all payloads, and
  // takes the whole from its own place once every rank has done so.
  virtual void combine_share(ElementRange chunk, std::span<std::byte* const> payloads) {
    combine(chunk, payloads);
  }
  virtual void copy_out(ElementRange, const std::byte*) {}

  // The payload where it already lies in one piece, for peers that can reach it there; null if it
  // does not.
  virtual const void* payload_in_place() const { return nullptr; }
  // All ranks' payloads can be reached: does this rank's share without a copy through chunks.
  virtual void combine_in_place(std::span<std::byte* const> payloads) {
    combine({0, call().elements}, payloads);
  }

 protected:
  Transfer(const Call& call, std::int64_t bytes_per_element)
      : Task(call), bytes_per_element_(bytes_per_element) {}

 private:
  std::int64_t bytes_per_element_;
};

}  // namespace lockstep::local
