// SPDX-License-Identifier: BSD-3-Clause
// A library that moves bytes between processes, as a network group uses it: Gloo, MPI, NCCL. It
// does no arithmetic: sums are the group's own business, so that they have the same bits on every
// backend. On GPUs alone they are NCCL's, beside these functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/call.h"

namespace lockstep::remote {

// Something on its way. It holds the tensors until it is done.
class Transmission {
 public:
  virtual ~Transmission() = default;
  // Without blocking. Throws what the library says if it failed.
  virtual bool done() = 0;
  // Has the calling thread's current stream on the device wait for it, instead of the thread; false
  // if that cannot be, or not yet.
  virtual bool order_current_stream() { return false; }
};

// Tensors are contiguous bytes, in host memory or on the library's device. Nothing blocks. Not
// thread-safe: the engine holds a lock, but for wait_for_event.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  // Only when nothing is on its way.
  virtual ~Transport() = default;

  // Started by all ranks in the same order.

  // Rank r gets outgoing_bytes[r] bytes, one block behind the other, and incoming_bytes[r] come
  // from it.
  virtual std::unique_ptr<Transmission> exchange(at::Tensor outgoing,
                                                 std::vector<std::int64_t> outgoing_bytes,
                                                 at::Tensor incoming,
                                                 std::vector<std::int64_t> incoming_bytes) = 0;
  // Everybody gets everybody's block, bytes[r] of rank r, one behind the other. `own` may lie in
  // its place in `all`.
  virtual std::unique_ptr<Transmission> all_gather(at::Tensor own, at::Tensor all,
                                                   std::vector<std::int64_t> bytes) = 0;
  virtual std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) = 0;

  // Messages of one tag between two ranks keep their order, and meet messages of the same size.
  virtual std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) = 0;
  virtual std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) = 0;

  // For libraries that work on the streams of a device: what the calling thread has the device do
  // at present, and that what is started from now on comes after that.
  virtual std::shared_ptr<void> mark() { return nullptr; }
  virtual void begin_after(const std::shared_ptr<void>& /*mark*/) {}

  // Says to which stage of which call the transmissions started from now on belong. `sizes` are
  // those of exchange_sizes.h for an all_to_all, else empty.
  virtual void begin_stage(const Call& /*call*/, std::size_t /*stage*/,
                           std::span<const std::int64_t> /*sizes*/) {}
  // Whether the first stage of a call fails, with CallsDiffer or a UsageError, if another rank
  // makes a different call.
  virtual bool compares_calls() const { return false; }

  // In what chunks sums of large tensors travel best
  // (docs/decisions/0014-chunks-between-machines.md).
  virtual std::int64_t chunk_bytes_between_machines() const { return 16 << 20; }

  // The group has failed: ends what is on its way, if the library can.
  virtual void abort() {}

  // How many transmissions have ended, as far as that shows by itself.
  virtual std::uint64_t events() const = 0;
  // Returns when there are more than so many, when there may be, or after this time.
  virtual void wait_for_event(std::uint64_t events, std::chrono::microseconds at_most) = 0;
};

}  // namespace lockstep::remote
