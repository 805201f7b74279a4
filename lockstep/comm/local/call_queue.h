// SPDX-License-Identifier: BSD-3-Clause
// One rank's collectives on one group, in order.
//
// A call has three states. Posted: this rank has shown its tensor. Combined: all ranks have posted,
// and this rank has done its share. Done: no rank touches this rank's tensor any more.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lockstep/comm/local/peers.h"
#include "lockstep/comm/local/transfers.h"

namespace lockstep::local {

// Not thread-safe: its engine holds a lock.
class CallQueue {
 public:
  explicit CallQueue(Peers& peers) : peers_(peers) {}

  // Numbers the call and appends it. A list of tensors is one transfer per tensor.
  void push(std::shared_ptr<Transfer> transfer);
  // Advances as far as the peers allow. True if anything moved. UsageError if a peer made a
  // different call.
  bool advance();

  bool empty() const { return entries_.empty(); }
  const Call& oldest() const { return entries_.front().transfer->call(); }
  std::uint64_t last_number() const { return last_number_; }
  // The ranks that the oldest call waits for.
  std::vector<int> awaited() const;
  // Forgets all calls. Hands tensors that a peer may still reach to Peers::keep.
  void clear();

 private:
  struct Entry {
    std::shared_ptr<Transfer> transfer;
    int arrived_peers = 0;  // peers checked so far, in the order of the ranks
    bool in_place = true;   // so far: all ranks' payloads can be reached in place
    // Chunks of a staged transfer. The counts are within this call.
    std::uint64_t first_chunk = 0;
    std::int64_t staged = -1;
    std::int64_t combined = 0;
    std::int64_t copied_out = 0;
  };

  bool post(Entry& entry);
  bool slot_is_free(std::uint64_t number);
  bool combine(Entry& entry);
  bool combine_chunks(Entry& entry);
  bool complete(const Entry& entry) const;
  bool all_arrived(Entry& entry);
  bool all_reached(std::atomic<std::uint64_t> ControlBlock::*counter, std::uint64_t value) const;
  // Spinning peers see the value at once, sleeping ones after ring_peers().
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value);
  void ring_peers();

  Peers& peers_;
  std::deque<Entry> entries_;  // not done; the first combined_ are combined,
  std::size_t posted_ = 0;     // the first posted_ are posted
  std::size_t combined_ = 0;
  std::uint64_t last_number_ = 0;
  std::uint64_t last_chunk_ = 0;
  std::uint64_t finished_by_all_ = 0;  // a lower bound
  bool unannounced_ = false;           // something was published since the last ring
};

}  // namespace lockstep::local
