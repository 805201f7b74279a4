// SPDX-License-Identifier: BSD-3-Clause
// What one collective does with the bytes of one tensor. The call queue decides when; the transfer
// knows the source and the destination. Its payload is what this rank shows to the others, cut into
// chunks if it is large; a payload's elements lie at its beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/core/task.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::local {

// A chunk is a range of the call's elements.
class Transfer : public Task {
 public:
  // Bytes of payload for each element of the call.
  std::int64_t payload_bytes_per_element() const { return bytes_per_element_; }
  std::int64_t payload_bytes() const { return call().elements * bytes_per_element_; }

  // Whether there is nothing to show and nothing to combine.
  virtual bool empty() const { return call().elements == 0; }

  // Writes the chunk's payload to `payload`.
  virtual void copy_in(ElementRange chunk, std::byte* payload) = 0;
  // Called when all ranks' payloads are available. Reads them, and writes results to this rank's
  // tensor.
  virtual void combine(ElementRange chunk, std::span<std::byte* const> payloads) = 0;

  // The same in two steps, for large payloads: each rank may write its share into all payloads.
  // Once every rank has done so, each copies the whole out of its own payload.
  virtual void combine_share(ElementRange chunk, std::span<std::byte* const> payloads) {
    combine(chunk, payloads);
  }
  virtual void copy_out(ElementRange, const std::byte*) {}

  // The payload where it already lies contiguously, for peers that can reach it there; else null.
  virtual const void* payload_in_place() const { return nullptr; }
  // Called when all ranks' payloads can be reached. Does this rank's share without chunks.
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
