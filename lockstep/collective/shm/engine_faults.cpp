// SPDX-License-Identifier: BSD-3-Clause
// What an engine does when its peers do not come: whom it waits for, and how it ends the group.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/collective/shm/doorbell.h"
#include "lockstep/collective/shm/engine.h"
#include "lockstep/core/error.h"

namespace lockstep::shm {

std::vector<int> Engine::awaited() const {
  std::vector<int> ranks;
  if (entries_.empty()) return ranks;
  const Entry& entry = entries_.front();
  const std::uint64_t number = entry.transfer->call().number;
  const auto behind = [&](const ControlBlock& block) {
    if (posted_ == 0) return block.finished + kSlots < number;
    if (block.slots[number % kSlots].arrived != number) return true;
    if (combined_ > 0) return block.finished < number;
    const auto chunk = entry.first_chunk + static_cast<std::uint64_t>(entry.copied_out);
    return entry.staged >= 0 && block.chunk_combined < chunk;
  };
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (rank != mesh_.rank() && behind(*blocks_[rank])) ranks.push_back(rank);
  }
  return ranks;
}

bool Engine::look_around() {
  if (error_ || advance() || error_ || entries_.empty()) return true;
  last_look_ = Clock::now();
  const Call call = entries_.front().transfer->call();
  look_for_aborts(call);
  return error_ || look_for_losses(call);
}

void Engine::give_up(const Deadline& deadline) {
  std::vector<std::string> names;
  for (int rank : awaited()) names.push_back(who(rank));
  const std::string reason = fmt::format(
      "{}waited {:.1f} s in vain for {}; it is stopped, stuck, or makes other calls than this rank "
      "(the group's timeout can be raised)",
      where(entries_.front().transfer->call()), deadline.span().count() / 1000.0,
      fmt::join(names, ", "));
  tell_peers(AbortCause::timed_out, reason);
  fail(std::make_exception_ptr(TimeoutError(reason)));
}

void Engine::look_for_aborts(const Call& call) {
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const auto cause = blocks_[rank]->abort_cause.load(std::memory_order_acquire);
    if (cause == AbortCause::none) continue;
    const std::string message = fmt::format("{}{} ended the group: {}", where(call), who(rank),
                                            blocks_[rank]->abort_reason);
    return fail(cause == AbortCause::timed_out ? std::make_exception_ptr(TimeoutError(message))
                                               : std::make_exception_ptr(PeerLost(rank, message)));
  }
}

bool Engine::look_for_losses(const Call& call) {
  const auto gone = [&](int rank) { return mesh_.state(rank) != PeerMesh::State::here; };
  const std::vector<int> ranks = awaited();
  const auto found = std::find_if(ranks.begin(), ranks.end(), gone);
  if (found == ranks.end()) return false;
  // It may have done its part just before it went.
  if (advance() || error_) return true;
  // Survivors leave soon after a death, so a rank that left may not be the cause.
  int cause = *found;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (rank != mesh_.rank() && mesh_.state(rank) == PeerMesh::State::lost) cause = rank;
  }
  const bool died = mesh_.state(cause) == PeerMesh::State::lost;
  fail(std::make_exception_ptr(
      died ? PeerLost(cause, where(call) + who(cause) +
                                 " died before it made or finished this call; its own output and "
                                 "the launcher's tell how")
           : PeerLost(cause,
                      where(call) + who(cause) +
                          " left the group before it made this call; all ranks must make the same "
                          "calls",
                      PeerLost::How::left)));
  return true;
}

void Engine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  tell_peers(AbortCause::requested, reason);
  const Call call =
      entries_.empty() ? Call{.number = last_number_ + 1} : entries_.front().transfer->call();
  fail(std::make_exception_ptr(
      PeerLost(mesh_.rank(), where(call) + "this rank ended the group: " + reason)));
}

void Engine::fail(std::exception_ptr error) {
  error_ = std::move(error);
  own_.doorbell.fetch_add(1);  // this rank's other waiters read the error
}

void Engine::tell_peers(AbortCause cause, const std::string& reason) {
  const auto length = std::min(reason.size(), sizeof own_.abort_reason - 1);
  std::memcpy(own_.abort_reason, reason.data(), length);
  own_.abort_reason[length] = '\0';
  own_.abort_cause.store(cause, std::memory_order_release);
  ring(blocks_, mesh_.rank());
}

}  // namespace lockstep::shm
