// SPDX-License-Identifier: BSD-3-Clause
// What an engine does when its peers do not come: whom it waits for, and how it ends the group.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/collective/absent.h"
#include "lockstep/collective/memory/doorbell.h"
#include "lockstep/collective/memory/engine.h"
#include "lockstep/core/error.h"

namespace lockstep::memory {

const Call& Engine::oldest() const {
  if (!calls_.empty()) return calls_.oldest();
  return (*std::ranges::find_if(mailboxes_, [](const auto& box) { return !box->empty(); }))
      ->oldest();
}

std::vector<int> Engine::awaited() const {
  std::vector<int> ranks = calls_.awaited();
  for (const auto& box : mailboxes_) {
    if (!box->empty()) ranks.push_back(box->peer());
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Engine::look_around() {
  if (error_) return;
  advance();
  if (error_ || idle()) return;
  last_look_ = Clock::now();
  const Call call = oldest();
  look_for_aborts(call);
  if (!error_) look_for_losses(call);
}

std::string Engine::last_wait_of(int rank) const {
  const auto last = peers_->blocks()[rank]->last_wait.get();
  if (!last) return "";
  const bool numbered_alike = !is_message(last->collective) && !is_message(oldest().collective);
  const bool past = numbered_alike && last->number < oldest().number;
  return past ? "" : describe(*last);
}

void Engine::give_up(const Deadline& deadline) {
  Absent absent;
  for (const int rank : awaited()) absent[last_wait_of(rank)].push_back(rank);
  if (absent.empty()) return;  // the last one has just come
  const std::string reason = fmt::format(
      "{}waited {:.1f} s in vain for {}; it is stopped, stuck, or makes other calls than this rank "
      "(the group's timeout can be raised)",
      where(oldest()), deadline.span().count() / 1000.0,
      describe(absent, [&](int rank) { return peers_->name(rank); }));
  tell_peers(AbortCause::timed_out, reason);
  fail(std::make_exception_ptr(TimeoutError(reason)));
}

void Engine::look_for_aborts(const Call& call) {
  for (int rank = 0; rank < peers_->size(); ++rank) {
    const auto cause = peers_->blocks()[rank]->abort_cause.load(std::memory_order_acquire);
    if (cause == AbortCause::none) continue;
    const std::string message =
        fmt::format("{}{} ended the group: {}", where(call), peers_->name(rank),
                    peers_->blocks()[rank]->abort_reason);
    return fail(error_of(cause, rank, message));
  }
}

// How a peer gave the group up, as it shows on this rank.
std::exception_ptr Engine::error_of(AbortCause cause, int rank, const std::string& message) const {
  const int lost = peers_->blocks()[rank]->lost_rank;
  switch (cause) {
    case AbortCause::timed_out:
      return std::make_exception_ptr(TimeoutError(message));
    case AbortCause::mismatched:
      return std::make_exception_ptr(UsageError(message));
    case AbortCause::lost:
      return std::make_exception_ptr(PeerLost(lost, message));
    case AbortCause::left:
      return std::make_exception_ptr(PeerLost(lost, message, PeerLost::How::left));
    default:
      return std::make_exception_ptr(PeerLost(rank, message));
  }
}

void Engine::look_for_losses(const Call& call) {
  const auto gone = [&](int rank) { return peers_->state(rank) != Peers::State::here; };
  const std::vector<int> ranks = awaited();
  const auto found = std::find_if(ranks.begin(), ranks.end(), gone);
  if (found == ranks.end()) return;
  // It may have done its part just before it went.
  if (advance() || error_) return;
  // Survivors leave soon after a death, so a rank that left may not be the cause; nor one that died
  // itself of what it had seen, but then it has said so.
  look_for_aborts(call);
  if (error_) return;
  int cause = *found;
  for (int rank = peers_->size() - 1; rank >= 0; --rank) {
    if (rank != peers_->rank() && peers_->state(rank) == Peers::State::lost) cause = rank;
  }
  const bool died = peers_->state(cause) == Peers::State::lost;
  const PeerLost lost =
      died ? PeerLost(cause, where(call) + peers_->name(cause) +
                                 " died before it made or finished this call; its own output and "
                                 "the launcher's tell how")
           : PeerLost(cause,
                      where(call) + peers_->name(cause) +
                          " left the group before it made this call; all ranks must make the same "
                          "calls",
                      PeerLost::How::left);
  tell_peers(died ? AbortCause::lost : AbortCause::left, lost.what(), cause);
  fail(std::make_exception_ptr(lost));
}

void Engine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  tell_peers(AbortCause::requested, reason);
  const Call call = idle() ? Call{.number = calls_.last_number() + 1} : oldest();
  fail(std::make_exception_ptr(
      PeerLost(peers_->rank(), where(call) + "this rank ended the group: " + reason)));
}

void Engine::fail(std::exception_ptr error) {
  error_ = std::move(error);
  calls_.clear();
  for (const auto& box : mailboxes_) box->clear();
}

void Engine::tell_peers(AbortCause cause, const std::string& reason, int lost_rank) {
  const auto length = std::min(reason.size(), sizeof peers_->own().abort_reason - 1);
  std::memcpy(peers_->own().abort_reason, reason.data(), length);
  peers_->own().abort_reason[length] = '\0';
  peers_->own().lost_rank = lost_rank;
  peers_->own().abort_cause.store(cause, std::memory_order_release);
  ring(peers_->blocks(), peers_->rank());
}

}  // namespace lockstep::memory
