// SPDX-License-Identifier: BSD-3-Clause
// What an engine does when its peers do not arrive: finds the ranks it waits for, and ends the
// group.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/comm/core/group_state.h"
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
  if (state_.failed()) return;
  advance();
  if (state_.failed() || idle()) return;
  last_look_ = Clock::now();
  const Call call = oldest();
  look_for_aborts(call);
  if (!state_.failed()) look_for_losses(call);
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
  if (absent.empty()) return;  // the last rank has just arrived
  const TimeoutError error = state_.timed_out(oldest(), deadline, absent);
  tell_peers(AbortCause::timed_out, error.what(), error.rank());
  fail(std::make_exception_ptr(error));
}

void Engine::look_for_aborts(const Call& call) {
  for (int rank = 0; rank < peers_->size(); ++rank) {
    const ControlBlock& block = *peers_->blocks()[rank];
    const auto cause = block.abort_cause.load(std::memory_order_acquire);
    if (cause == AbortCause::none) continue;
    const AbortNotice notice{.rank = rank,
                             .cause = cause,
                             .lost_rank = block.lost_rank,
                             .culprit = block.culprit,
                             .reason = block.abort_reason};
    return fail(state_.ended_by_peer(call, notice), notice.culprit);
  }
}

void Engine::look_for_losses(const Call& call) {
  const auto gone = [&](int rank) { return peers_->state(rank) != Peers::State::here; };
  const std::vector<int> ranks = awaited();
  const auto found = std::find_if(ranks.begin(), ranks.end(), gone);
  if (found == ranks.end()) return;
  // The peer may have done its part just before it left.
  if (advance() || state_.failed()) return;
  // Survivors leave soon after a death, so a rank that left may not be the cause. Nor may a rank
  // that died of an error that it saw; but such a rank has told its peers.
  look_for_aborts(call);
  if (state_.failed()) return;
  int cause = *found;
  for (int rank = peers_->size() - 1; rank >= 0; --rank) {
    if (rank == peers_->rank()) continue;
    const auto state = peers_->state(rank);
    if (state == Peers::State::lost || state == Peers::State::failed) cause = rank;
  }
  const auto state = peers_->state(cause);
  const ControlBlock& block = *peers_->blocks()[cause];
  const bool left = state == Peers::State::left;
  const bool failed = state == Peers::State::failed;
  const PeerLost lost = state_.peer_gone(call, cause,
                                         left     ? PeerEnd::left
                                         : failed ? PeerEnd::failed
                                                  : PeerEnd::died,
                                         failed ? block.abort_reason : "");
  const int culprit = failed ? block.culprit : -1;
  tell_peers(left ? AbortCause::left : AbortCause::lost, lost.what(), cause, culprit);
  fail(std::make_exception_ptr(lost), culprit);
}

void Engine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;
  tell_peers(AbortCause::requested, reason);
  const Call call = idle() ? Call{.number = calls_.last_number() + 1} : oldest();
  fail(std::make_exception_ptr(state_.ended_here(call, reason)));
}

void Engine::leave_failing(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;  // the peers know already
  leave_word(reason, -1, state_.culprit());
  peers_->leave_failing();
  ring(peers_->blocks(), peers_->rank());
}

void Engine::fail(std::exception_ptr error, int culprit) {
  state_.fail(std::move(error));
  calls_.clear();
  for (const auto& box : mailboxes_) box->clear();
  state_.note_loss(culprit);
}

void Engine::leave_word(const std::string& reason, int lost_rank, int culprit) {
  const auto length = std::min(reason.size(), sizeof peers_->own().abort_reason - 1);
  std::memcpy(peers_->own().abort_reason, reason.data(), length);
  peers_->own().abort_reason[length] = '\0';
  peers_->own().lost_rank = lost_rank;
  peers_->own().culprit = culprit;
}

void Engine::tell_peers(AbortCause cause, const std::string& reason, int lost_rank, int culprit) {
  leave_word(reason, lost_rank, culprit >= 0 ? culprit : state_.culprit(lost_rank));
  peers_->own().abort_cause.store(cause, std::memory_order_release);
  ring(peers_->blocks(), peers_->rank());
}

}  // namespace lockstep::local
