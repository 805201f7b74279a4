// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/shm/engine.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/collective/shm/doorbell.h"
#include "lockstep/collective/shm/transfers.h"
#include "lockstep/core/cpu.h"
#include "lockstep/core/error.h"

namespace lockstep::shm {
namespace {

// How long a sleeper goes without looking whether its peers are alive.
constexpr std::chrono::milliseconds kLookAround(20);

std::vector<Mapping> exchange_memory(PeerMesh& mesh, UniqueFd own, std::size_t bytes,
                                     const Deadline& deadline) {
  std::vector<UniqueFd> fds = mesh.exchange(own.get(), deadline);
  fds[mesh.rank()] = std::move(own);
  std::vector<Mapping> mappings;
  for (const auto& fd : fds) mappings.emplace_back(fd.get(), bytes);
  return mappings;
}

UniqueFd make_control_block(int ranks) {
  UniqueFd memory = make_memory(sizeof(ControlBlock), ranks);
  const Mapping mapping(memory.get(), sizeof(ControlBlock));
  auto* block = reinterpret_cast<ControlBlock*>(mapping.data());
  for (int core : allowed_cores()) CPU_SET(core, &block->cores);
  return memory;
}

std::vector<ControlBlock*> as_blocks(const std::vector<Mapping>& mappings) {
  std::vector<ControlBlock*> blocks;
  for (const auto& mapping : mappings) {
    blocks.push_back(reinterpret_cast<ControlBlock*>(mapping.data()));
  }
  return blocks;
}

}  // namespace

Engine::Engine(const Membership& membership, const Deadline& deadline)
    : mesh_(membership, deadline),
      mappings_(
          exchange_memory(mesh_, make_control_block(mesh_.size()), sizeof(ControlBlock), deadline)),
      blocks_(as_blocks(mappings_)),
      own_(*blocks_[mesh_.rank()]),
      spin_(every_rank_has_a_core()) {}

void Engine::start(std::shared_ptr<Transfer> transfer, int tensor, int tensors) {
  const std::lock_guard lock(mutex_);
  transfer->call_.number = last_number_ + 1;
  // A call that needs nobody's answer would not notice.
  if (!error_) look_for_aborts(transfer->call());
  check_error();
  ++last_number_;
  transfer->call_.tensor = tensor;
  transfer->call_.tensors = tensors;
  entries_.push_back({.transfer = std::move(transfer)});
  advance();
}

bool Engine::poll(const Transfer& transfer) {
  if (transfer.done()) return true;
  const std::lock_guard lock(mutex_);
  if (!transfer.done()) {
    check_error();
    // Who only polls must see a death as well; but hooks poll often, and looking costs system
    // calls.
    if (!advance() && Clock::now() - last_look_ > kLookAround) look_around();
    if (!transfer.done()) check_error();
  }
  return transfer.done();
}

void Engine::wait(const Transfer& transfer, const Deadline& deadline) {
  Patience patience(spin_);
  const auto advanced = [&] {
    const std::lock_guard lock(mutex_);
    if (transfer.done()) return true;
    check_error();
    return advance();
  };
  while (!transfer.done()) {
    if (advanced()) {
      patience.progress();
    } else if (!patience.pause()) {
      Sleep sleep(own_);
      if (advanced()) continue;
      sleep.wait(std::min(kLookAround, deadline.remaining()));
      const std::lock_guard lock(mutex_);
      const bool changed = look_around();
      if (!changed && !transfer.done() && !error_ && deadline.passed()) give_up(deadline);
    }
  }
}

bool Engine::advance() {
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
  if (error_) {
    entries_.clear();
    posted_ = 0;
    combined_ = 0;
    return true;
  }
  while (combined_ > 0 && complete(entries_.front())) {
    entries_.front().transfer->mark_done();
    entries_.pop_front();
    --posted_;
    --combined_;
    moved = true;
  }
  return moved;
}

bool Engine::post(Entry& entry) {
  Transfer& transfer = *entry.transfer;
  const std::uint64_t number = transfer.call().number;
  if (number > kSlots && !all_reached(&ControlBlock::finished, number - kSlots)) return false;
  Slot& slot = own_.slot(number);
  slot.arrival = {.call = transfer.call()};
  if (const auto& place = transfer.shared_place()) {
    slot.arrival.segment = place->segment;
    slot.arrival.offset = place->offset;
  }
  if (transfer.payload_bytes() <= kInlineBytes && transfer.call().elements > 0) {
    transfer.copy_in({0, transfer.call().elements}, slot.payload);
  }
  publish(slot.arrived, number);
  return true;
}

bool Engine::all_arrived(Entry& entry) {
  const Call& call = entry.transfer->call();
  const Arrival& own = own_.slot(call.number).arrival;
  for (int& peer = entry.arrived_peers; peer < mesh_.size(); ++peer) {
    const Slot& slot = blocks_[peer]->slot(call.number);
    if (slot.arrived.load(std::memory_order_acquire) != call.number) return false;
    if (!(slot.arrival.call == call)) {
      fail(std::make_exception_ptr(UsageError(fmt::format(
          "{}this rank called {}, but {} called {}; every rank must make the same calls, with the "
          "same sizes and types, in the same order",
          where(call), describe(call), who(peer), describe(slot.arrival.call)))));
      return false;
    }
    entry.in_place &= own.segment != 0 && slot.arrival.segment == own.segment &&
                      slot.arrival.offset == own.offset;
  }
  return true;
}

bool Engine::combine(Entry& entry) {
  if (!all_arrived(entry)) return false;
  Transfer& transfer = *entry.transfer;
  if (transfer.payload_bytes() <= kInlineBytes) {
    entry.in_place = false;
    if (transfer.call().elements > 0) {
      std::vector<std::byte*> payloads;
      for (auto* block : blocks_) payloads.push_back(block->slot(transfer.call().number).payload);
      transfer.combine({0, transfer.call().elements}, payloads);
    }
  } else if (entry.in_place) {
    transfer.combine_in_place();
  } else if (!combine_chunks(entry)) {
    return false;
  }
  publish(own_.finished, transfer.call().number);
  return true;
}

bool Engine::combine_chunks(Entry& entry) {
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
    return Chunk{index * per_chunk, std::min(per_chunk, elements - index * per_chunk)};
  };
  const auto place = [&](ControlBlock* block, std::int64_t index) {
    return block->chunks[(entry.first_chunk + static_cast<std::uint64_t>(index)) % kChunks];
  };
  while (entry.copied_out < chunks) {
    bool moved = false;
    // A place is free again once its last chunk has been copied out: all ranks have combined it.
    if (entry.staged < chunks &&
        entry.staged - entry.copied_out < static_cast<std::int64_t>(kChunks)) {
      transfer.copy_in(run(entry.staged), place(&own_, entry.staged));
      publish(own_.chunk_staged, entry.first_chunk + static_cast<std::uint64_t>(entry.staged++));
      moved = true;
    }
    const auto next_combined = entry.first_chunk + static_cast<std::uint64_t>(entry.combined);
    if (entry.combined < entry.staged && all_reached(&ControlBlock::chunk_staged, next_combined)) {
      std::vector<std::byte*> places;
      for (auto* block : blocks_) places.push_back(place(block, entry.combined));
      transfer.combine_share(run(entry.combined), places);
      publish(own_.chunk_combined, next_combined);
      ++entry.combined;
      moved = true;
    }
    const auto next_out = entry.first_chunk + static_cast<std::uint64_t>(entry.copied_out);
    if (entry.copied_out < entry.combined && all_reached(&ControlBlock::chunk_combined, next_out)) {
      transfer.copy_out(run(entry.copied_out), place(&own_, entry.copied_out));
      ++entry.copied_out;
      moved = true;
    }
    if (!moved) return false;
  }
  return true;
}

bool Engine::complete(const Entry& entry) {
  // Reduced in place, the tensor is being written by its peers until they have finished.
  return !entry.in_place || all_reached(&ControlBlock::finished, entry.transfer->call().number);
}

bool Engine::all_reached(std::atomic<std::uint64_t> ControlBlock::*counter,
                         std::uint64_t value) const {
  return std::all_of(blocks_.begin(), blocks_.end(), [&](const ControlBlock* block) {
    return (block->*counter).load(std::memory_order_acquire) >= value;
  });
}

void Engine::publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  counter.store(value, std::memory_order_release);
  ring(blocks_, mesh_.rank());
}

std::vector<Mapping> Engine::share_memory(std::size_t bytes, std::uint64_t& segment,
                                          const Deadline& deadline) {
  // A rank that finds no memory says so before anyone waits for its descriptor.
  UniqueFd memory;
  std::string refusal;
  try {
    memory = make_memory(bytes, mesh_.size());
  } catch (const BackendError& error) {
    refusal = error.what();
  }
  const auto vote = std::make_shared<VoteTransfer>(
      Call{.collective = Collective::empty, .elements = static_cast<std::int64_t>(bytes)},
      refusal.empty());
  start(vote);
  wait(*vote, deadline);
  const Call& call = vote->call();
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (vote->votes()[rank]) continue;
    throw BackendError(where(call) + (rank == mesh_.rank()
                                          ? refusal
                                          : who(rank) + " found no memory for it; its own "
                                                        "error has the figures"));
  }
  segment = call.number;
  try {
    return exchange_memory(mesh_, std::move(memory), bytes, deadline);
  } catch (const PeerLost& error) {
    throw PeerLost(error.rank(), where(call) + error.what());
  } catch (const TimeoutError& error) {
    throw TimeoutError(where(call) + error.what());
  }
}

bool Engine::every_rank_has_a_core() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const auto* block : blocks_) CPU_OR(&cores, &cores, &block->cores);
  return cut_to_quota(CPU_COUNT(&cores)) >= mesh_.size();
}

std::string Engine::where(const Call& call) const {
  return fmt::format("[shm] {}, rank {} of {}: ", title(call), mesh_.rank(), mesh_.size());
}

std::string Engine::who(int rank) const {
  return fmt::format("rank {} (pid {})", rank, mesh_.pid(rank));
}

}  // namespace lockstep::shm
