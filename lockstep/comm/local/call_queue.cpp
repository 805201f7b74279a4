// SPDX-License-Identifier: BSD-3-Clause
// Numbers the calls of a group and advances them as far as the peers allow.
#include "lockstep/comm/local/call_queue.h"

#include <algorithm>
#include <utility>

#include <c10/util/SmallVector.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/local/doorbell.h"

namespace lockstep::local {

void CallQueue::push(std::shared_ptr<Transfer> transfer) {
  transfer->number(++last_number_);
  entries_.push_back({.transfer = std::move(transfer)});
}

void CallQueue::clear() {
  for (std::size_t i = 0; i < posted_; ++i) {
    if (entries_[i].in_place) peers_.keep(std::move(entries_[i].transfer));
  }
  entries_.clear();
  posted_ = 0;
  combined_ = 0;
}

bool CallQueue::advance() {
  bool moved = false;
  while (posted_ < entries_.size() && post(entries_[posted_])) {
    ++posted_;
    moved = true;
  }
  while (combined_ < posted_) {
    Entry& entry = entries_[combined_];
    const auto before = entry.staged + entry.combined + entry.copied_out;
    const bool ready = combine(entry);
    moved |= ready || before != entry.staged + entry.combined + entry.copied_out;
    if (!ready) break;
    ++combined_;
  }
  while (combined_ > 0 && complete(entries_.front())) {
    entries_.front().transfer->mark_done();
    entries_.pop_front();
    --posted_;
    --combined_;
    moved = true;
  }
  ring_peers();
  return moved;
}

bool CallQueue::post(Entry& entry) {
  Transfer& transfer = *entry.transfer;
  const std::uint64_t number = transfer.call().number;
  if (!slot_is_free(number)) return false;
  Slot& slot = peers_.own().slot(number);
  slot.arrival = {.call = transfer.call(), .location = {}};
  if (transfer.payload_bytes() > kInlineBytes) {
    if (const void* payload = transfer.payload_in_place()) {
      slot.arrival.location = peers_.location_of(payload, transfer.payload_bytes());
    }
  } else if (!transfer.empty()) {
    transfer.copy_in({0, transfer.call().elements}, slot.payload);
  }
  publish(slot.arrived, number);
  return true;
}

// Reading what peers have finished takes as long as a small message, and slows the peers' next
// store there. So it happens only when all slots known to be free are used up.
bool CallQueue::slot_is_free(std::uint64_t number) {
  if (number > finished_by_all_ + kSlots) {
    finished_by_all_ = number;
    for (const ControlBlock* block : peers_.blocks()) {
      finished_by_all_ =
          std::min(finished_by_all_, block->finished.load(std::memory_order_acquire));
    }
  }
  return number <= finished_by_all_ + kSlots;
}

bool CallQueue::all_arrived(Entry& entry) {
  const Call& call = entry.transfer->call();
  const Location& own = peers_.own().slot(call.number).arrival.location;
  for (int& peer = entry.arrived_peers; peer < peers_.size(); ++peer) {
    const Slot& slot = peers_.blocks()[peer]->slot(call.number);
    if (slot.arrived.load(std::memory_order_acquire) != call.number) return false;
    if (!(slot.arrival.call == call)) {
      throw CallsDiffer(context_of(peers_.backend(), call, peers_.rank(), peers_.size()), call,
                        peer, peers_.name(peer), slot.arrival.call);
    }
    // All ranks name the same segment, so each of them still holds it and can reach the others'.
    entry.in_place &= own.segment != 0 && slot.arrival.location.segment == own.segment;
  }
  return true;
}

bool CallQueue::combine(Entry& entry) {
  if (!all_arrived(entry)) return false;
  Transfer& transfer = *entry.transfer;
  const Call& call = transfer.call();
  c10::SmallVector<std::byte*, kFewRanks> payloads;
  if (transfer.payload_bytes() <= kInlineBytes) {
    if (!transfer.empty()) {
      for (auto* block : peers_.blocks()) payloads.push_back(block->slot(call.number).payload);
      transfer.combine({0, call.elements}, payloads);
    }
  } else {
    ring_peers();  // before work that takes long
    if (entry.in_place) {
      for (int peer = 0; peer < peers_.size(); ++peer) {
        const Location& location = peers_.blocks()[peer]->slot(call.number).arrival.location;
        payloads.push_back(peers_.address(peer, location));
      }
      transfer.combine_in_place(payloads);
    } else if (!combine_chunks(entry)) {
      return false;
    }
  }
  publish(peers_.own().finished, call.number);
  return true;
}

bool CallQueue::combine_chunks(Entry& entry) {
  Transfer& transfer = *entry.transfer;
  const std::int64_t elements = transfer.call().elements;
  const std::int64_t per_chunk =
      std::max<std::int64_t>(1, kChunkBytes / transfer.payload_bytes_per_element());
  const std::int64_t chunks = (elements + per_chunk - 1) / per_chunk;
  if (entry.staged < 0) {
    entry.staged = 0;
    entry.first_chunk = last_chunk_ + 1;
    last_chunk_ += static_cast<std::uint64_t>(chunks);
  }
  const auto run = [&](std::int64_t index) {
    return ElementRange{index * per_chunk, std::min(per_chunk, elements - index * per_chunk)};
  };
  const auto chunk_in = [&](ControlBlock* block, std::int64_t index) {
    return block->chunks[(entry.first_chunk + static_cast<std::uint64_t>(index)) % kChunks];
  };
  while (entry.copied_out < chunks) {
    bool moved = false;
    // A chunk is free again once its last content has been copied out: all ranks have combined it.
    if (entry.staged < chunks &&
        entry.staged - entry.copied_out < static_cast<std::int64_t>(kChunks)) {
      transfer.copy_in(run(entry.staged), chunk_in(&peers_.own(), entry.staged));
      publish(peers_.own().chunk_staged,
              entry.first_chunk + static_cast<std::uint64_t>(entry.staged++));
      ring_peers();
      moved = true;
    }
    const auto next_combined = entry.first_chunk + static_cast<std::uint64_t>(entry.combined);
    if (entry.combined < entry.staged && all_reached(&ControlBlock::chunk_staged, next_combined)) {
      c10::SmallVector<std::byte*, kFewRanks> chunks;
      for (auto* block : peers_.blocks()) chunks.push_back(chunk_in(block, entry.combined));
      transfer.combine_share(run(entry.combined), chunks);
      publish(peers_.own().chunk_combined, next_combined);
      ring_peers();
      ++entry.combined;
      moved = true;
    }
    const auto next_out = entry.first_chunk + static_cast<std::uint64_t>(entry.copied_out);
    if (entry.copied_out < entry.combined && all_reached(&ControlBlock::chunk_combined, next_out)) {
      transfer.copy_out(run(entry.copied_out), chunk_in(&peers_.own(), entry.copied_out));
      ++entry.copied_out;
      moved = true;
    }
    if (!moved) return false;
  }
  return true;
}

bool CallQueue::complete(const Entry& entry) const {
  // Peers write to a tensor that is reduced in place until they have finished.
  return !entry.in_place || all_reached(&ControlBlock::finished, entry.transfer->call().number);
}

bool CallQueue::all_reached(std::atomic<std::uint64_t> ControlBlock::*counter,
                            std::uint64_t value) const {
  return std::all_of(peers_.blocks().begin(), peers_.blocks().end(),
                     [&](const ControlBlock* block) {
                       return (block->*counter).load(std::memory_order_acquire) >= value;
                     });
}

void CallQueue::publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  counter.store(value, std::memory_order_release);
  unannounced_ = true;
}

void CallQueue::ring_peers() {
  if (!std::exchange(unannounced_, false)) return;
  ring(peers_.blocks(), peers_.rank());
}

std::vector<int> CallQueue::awaited() const {
  std::vector<int> ranks;
  if (entries_.empty()) return ranks;
  const Entry& entry = entries_.front();
  const std::uint64_t number = entry.transfer->call().number;
  const auto behind = [&](const ControlBlock& block) {
    if (posted_ == 0) return block.finished + kSlots < number;
    if (block.slots[number % kSlots].arrived != number) return true;
    if (combined_ > 0) return block.finished < number;
    if (entry.staged < 0) return false;
    // The oldest chunk waits for ranks that have not staged it, or else have not combined it.
    const bool combined = entry.combined > entry.copied_out;
    const auto chunk = entry.first_chunk + static_cast<std::uint64_t>(entry.copied_out);
    return (combined ? block.chunk_combined : block.chunk_staged) < chunk;
  };
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank != peers_.rank() && behind(*peers_.blocks()[rank])) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace lockstep::local
