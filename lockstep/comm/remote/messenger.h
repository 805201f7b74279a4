// SPDX-License-Identifier: BSD-3-Clause
// A library that moves messages between ranks: Gloo or MPI. ComparingTransport makes collectives of
// the messages.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/remote/transport.h"

namespace lockstep::remote {

// Tensors are contiguous bytes in host memory. Nothing blocks. Only wait_for_event is thread-safe.
class Messenger {
 public:
  // Bytes to send, or a buffer for bytes that arrive.
  struct Message {
    std::byte* data;
    std::int64_t bytes;
    int peer;
    int tag;
  };

  Messenger() = default;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;
  // Destroy it only when no message is in transit.
  virtual ~Messenger() = default;

  // Messages of one tag between two ranks keep their order. A message may be shorter than the
  // buffer that waits for it; a longer one is fatal.

  // Starts several messages as one transmission, which keeps `memory`, the owner of their bytes.
  // All ranks start exchanges in the same order. Tags are below tags(), and never match the tags
  // of send and receive.
  virtual std::unique_ptr<Transmission> exchange(std::span<const Message> outgoing,
                                                 std::span<const Message> incoming,
                                                 std::shared_ptr<void> memory) = 0;
  virtual int tags() const = 0;

  virtual std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) = 0;
  virtual std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) = 0;

  // Uses the library's own algorithm. All ranks start broadcasts in the same order, with the same
  // root and the same number of bytes.
  virtual std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) = 0;

  // See transport.h.
  virtual std::int64_t chunk_bytes_between_machines() const = 0;
  virtual std::uint64_t events() const = 0;
  virtual void wait_for_event(std::uint64_t events, std::chrono::microseconds at_most) = 0;
};

}  // namespace lockstep::remote
