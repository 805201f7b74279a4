// SPDX-License-Identifier: BSD-3-Clause
// What an engine does when its peers do not come: whom it waits for, and how it ends the group.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/comm/core/absent.h"
#include "lockstep/comm/core/peer_end.h"
#include "lockstep/comm/local/doorbell.h"
#include "lockstep/comm/local/engine.h"
#include "lockstep/core/error.h"

namespace lockstep::local {

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
  const int lost = absent.begin()->second.front();
  const std::string reason = fmt::format(
      "{}waited {:.1f} s in vain for {}; it is stopped, stuck, or makes other calls than this rank "
      "(the group's timeout can be raised)",
      where(oldest()), deadline.span().count() / 1000.0,
      describe(absent, [&](int rank) { return peers_->name(rank); }));
  tell_peers(AbortCause::timed_out, reason, lost);
  fail(std::make_exception_ptr(TimeoutError(reason, lost)));
}

void Engine::look_for_aborts(const Call& call) {
  for (int rank = 0; rank < peers_->size(); ++rank) {
    const auto cause = peers_->blocks()[rank]->abort_cause.load(std::memory_order_acquire);
    if (cause == AbortCause::none) continue;
    const std::string message =
        fmt::format("{}{} ended the group: {}", where(call), peers_->name(rank),
                    peers_->blocks()[rank]->abort_reason);
    return fail(error_of(cause, rank, message), peers_->blocks()[rank]->culprit);
  }
}

// How a peer gave the group up, as it shows on this rank.
std::exception_ptr Engine::error_of(AbortCause cause, int rank, const std::string& message) const {
  const int lost = peers_->blocks()[rank]->lost_rank;
  switch (cause) {
    case AbortCause::timed_out:
      return std::make_exception_ptr(TimeoutError(message, lost));
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
    if (rank == peers_->rank()) continue;
    const auto state = peers_->state(rank);
    if (state == Peers::State::lost || state == Peers::State::failed) cause = rank;
  }
  const auto state = peers_->state(cause);
  const bool left = state == Peers::State::left;
  const ControlBlock& block = *peers_->blocks()[cause];
  const bool failed = state == Peers::State::failed;
  const std::string how = left     ? peer_end::left
                          : failed ? peer_end::failed(block.abort_reason)
                                   : peer_end::died;
  const PeerLost lost(cause, where(call) + peers_->name(cause) + how,
                      left ? PeerLost::How::left : PeerLost::How::failed);
  const int culprit = failed ? block.culprit : -1;
  tell_peers(left ? AbortCause::left : AbortCause::lost, lost.what(), cause, culprit);
  fail(std::make_exception_ptr(lost), culprit);
}

void Engine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  tell_peers(AbortCause::requested, reason);
  const Call call = idle() ? Call{.number = calls_.last_number() + 1} : oldest();
  fail(std::make_exception_ptr(
      PeerLost(peers_->rank(), where(call) + "this rank ended the group: " + reason)));
}

void Engine::leave_failing(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;  // the peers know
  leave_word(reason, -1, losses_.culprit());
  peers_->leave_failing();
  ring(peers_->blocks(), peers_->rank());
}

void Engine::fail(std::exception_ptr error, int culprit) {
  error_ = std::move(error);
  calls_.clear();
  for (const auto& box : mailboxes_) box->clear();
  losses_.note(error_, culprit);
}

void Engine::leave_word(const std::string& reason, int lost_rank, int culprit) {
  const auto length = std::min(reason.size(), sizeof peers_->own().abort_reason - 1);
  std::memcpy(peers_->own().abort_reason, reason.data(), length);
  peers_->own().abort_reason[length] = '\0';
  peers_->own().lost_rank = lost_rank;
  peers_->own().culprit = culprit;
}

void Engine::tell_peers(AbortCause cause, const std::string& reason, int lost_rank, int culprit) {
  leave_word(reason, lost_rank, culprit >= 0 ? culprit : losses_.culprit(lost_rank));
  peers_->own().abort_cause.store(cause, std::memory_order_release);
  ring(peers_->blocks(), peers_->rank());
}

}  // namespace lockstep::local
