// SPDX-License-Identifier: BSD-3-Clause
// A library that moves bytes between processes, as the remote engine uses it: Gloo, MPI or NCCL. It
// does no arithmetic: the schedules compute sums, so that these have the same bits on every
// backend. On GPUs, NCCL computes them instead, with its own functions.
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

// Bytes in transit. Holds the tensors until it is done.
class Transmission {
 public:
  virtual ~Transmission() = default;
  // Does not block. Throws the library's error if the transmission failed.
  virtual bool done() = 0;
  // Makes the calling thread's current stream on the device wait for it, instead of the thread;
  // false if that is impossible, or not yet possible.
  virtual bool order_current_stream() { return false; }
};

// Tensors are contiguous bytes, in host memory or on the library's device. Nothing blocks. Not
// thread-safe, except for wait_for_event: the engine holds a lock.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  // Destroy it only when nothing is in transit.
  virtual ~Transport() = default;

  // All ranks start these in the same order.

  // Rank r gets outgoing_bytes[r] bytes, and incoming_bytes[r] bytes come from it; blocks lie one
  // after the other.
  virtual std::unique_ptr<Transmission> exchange(at::Tensor outgoing,
                                                 std::vector<std::int64_t> outgoing_bytes,
                                                 at::Tensor incoming,
                                                 std::vector<std::int64_t> incoming_bytes) = 0;
  // Every rank gets every rank's block, bytes[r] from rank r, one after the other. `own` may lie in
  // its place in `all`.
  virtual std::unique_ptr<Transmission> all_gather(at::Tensor own, at::Tensor all,
                                                   std::vector<std::int64_t> bytes) = 0;
  virtual std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) = 0;

  // Messages of one tag between two ranks keep their order, and match messages of the same size.
  virtual std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) = 0;
  virtual std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) = 0;

  // For libraries that work on a device's streams. A mark is the present point in the calling
  // thread's work on the device; what is started after begin_after() runs after it.
  virtual std::shared_ptr<void> mark() { return nullptr; }
  virtual void begin_after(const std::shared_ptr<void>& /*mark*/) {}

  // Names the call and the stage that the next transmissions belong to. `sizes`: the
  // exchange_sizes() of an all_to_all, else empty.
  virtual void begin_stage(const Call& /*call*/, std::size_t /*stage*/,
                           std::span<const std::int64_t> /*sizes*/) {}
  // Whether the first stage of a call fails, with CallsDiffer or a UsageError, if another rank
  // makes a different call.
  virtual bool compares_calls() const { return false; }

  // The chunk size in which sums of large tensors travel best
  // (docs/decisions/0014-chunks-between-machines.md).
  virtual std::int64_t chunk_bytes_between_machines() const { return 16 << 20; }

  // The group has failed: ends the transmissions under way, if the library can.
  virtual void abort() {}

  // The number of transmissions that have ended, as far as the library reports that by itself.
  virtual std::uint64_t events() const = 0;
  // Returns when there are more than `events`, when there may be more, or after `at_most`.
  virtual void wait_for_event(std::uint64_t events, std::chrono::microseconds at_most) = 0;
};

}  // namespace lockstep::remote
