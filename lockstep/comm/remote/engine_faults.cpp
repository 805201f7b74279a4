// SPDX-License-Identifier: BSD-3-Clause
// What an engine does when its peers do not arrive: finds the ranks it waits for, and ends the
// group.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/remote/engine.h"
#include "lockstep/comm/remote/leak_until_exit.h"
#include "lockstep/comm/remote/monitor_message.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;

// After waiting this long in one call, a rank tells the monitor's server.
constexpr auto kAWhile = 100ms;
// How long the peer monitor may take to explain a failure of the transport. The loss of a machine
// is detected after about ten seconds.
constexpr auto kExplanation = 15s;
// How long data that a rank sent before it left may still be in transit.
constexpr auto kOnTheWay = 2s;

// Encodes the calls of two ranks as the reason of an abort, and decodes them.
std::string as_bytes(const Call& own, const Call& peers) {
  std::string bytes(2 * sizeof(Call), '\0');
  std::memcpy(bytes.data(), &own, sizeof own);
  std::memcpy(bytes.data() + sizeof own, &peers, sizeof peers);
  return bytes;
}

std::pair<Call, Call> calls_of(const std::string& bytes) {
  std::pair<Call, Call> calls;
  if (bytes.size() != 2 * sizeof(Call)) throw malformed_message();
  std::memcpy(&calls.first, bytes.data(), sizeof(Call));
  std::memcpy(&calls.second, bytes.data() + sizeof(Call), sizeof(Call));
  return calls;
}

}  // namespace

void Engine::look_around() {
  if (state_.failed() || idle()) return;
  last_look_ = Clock::now();
  monitor_->look();
  if (transport_failure_.empty() && (monitor_->aborted() || monitor_->lost())) {
    // This news may overtake data that peers sent earlier, which may complete a call.
    while (advance()) {
    }
    if (state_.failed() || idle()) return;
  }
  const Call call = oldest().call();
  if (!look_for_ends(call) && !transport_failure_.empty()) explain_transport(call);
}

bool Engine::look_for_ends(const Call& call) {
  const auto& abort = monitor_->aborted();
  const auto lost = monitor_->lost();
  // A death counts before an abort, since ranks that saw the death abort the group because of it.
  // But if the rank that aborted the group died itself, its abort gives the reason.
  if (lost && !(abort && abort->rank == *lost)) {
    const PeerEnd how = monitor_->lost_by_death() ? PeerEnd::died : PeerEnd::connection_lost;
    fail(std::make_exception_ptr(state_.peer_gone(call, *lost, how)));
    return true;
  }
  if (abort) {
    if (abort->cause == AbortCause::mismatched && abort->lost_rank >= 0) {
      fail(reported_difference(call, *abort));
      return true;
    }
    fail(state_.ended_by_peer(call, *abort), abort->culprit);
    return true;
  }
  const int left = left_before(call);
  if (left < 0) return false;
  fail_for_farewell(call, left);
  return true;
}

void Engine::fail_for_farewell(const Call& call, int rank, const std::string& under_way) {
  const auto& [last_call, reason, culprit, when] = monitor_->left().at(rank);
  const bool failed = !reason.empty();
  const PeerLost gone = failed ? state_.peer_gone(call, rank, PeerEnd::failed, reason)
                               : state_.peer_gone(call, rank, PeerEnd::left, under_way);
  fail_for_all(failed ? AbortCause::lost : AbortCause::left, std::make_exception_ptr(gone),
               gone.what(), rank, culprit);
}

// Prefers a rank that failed: others may have left because of it.
int Engine::left_before(const Call& call) const {
  const auto since = [now = Clock::now()](Clock::time_point then) { return now - then; };
  int found = -1;
  for (const auto& [rank, farewell] : monitor_->left()) {
    bool ends_call = farewell.last_call < call.number;
    if (is_message(call.collective)) {
      // Not every transport reports that the other end has gone.
      const bool may_arrive = transport_failure_.empty() ? since(farewell.when) < kExplanation
                                                         : since(transport_failed_) < kOnTheWay;
      ends_call = rank == call.root && !may_arrive;
    }
    if (!ends_call) continue;
    if (!farewell.reason.empty()) return rank;
    if (found < 0) found = rank;
  }
  return found;
}

void Engine::explain_transport(const Call& call) {
  const auto since = Clock::now() - transport_failed_;
  const auto& left = monitor_->left();
  if (!left.empty() && since > kOnTheWay) {
    const auto failed =
        std::ranges::find_if(left, [](const auto& entry) { return !entry.second.reason.empty(); });
    fail_for_farewell(call, (failed == left.end() ? left.begin() : failed)->first,
                      transport_failure_);
  } else if (since > kExplanation) {
    const std::string message = fmt::format(
        "{}the connection to another rank failed, though none is known to have died: {}",
        state_.where(call), transport_failure_);
    fail_for_all(AbortCause::requested, std::make_exception_ptr(BackendError(message)), message);
  }
}

void Engine::say_waiting(Clock::duration waited) {
  if (waited < kAWhile || state_.failed() || idle()) return;
  const Call& call = oldest().call();
  if (call == said_waiting_) return;
  monitor_->say_waiting(is_message(call.collective) ? 0 : call.number, describe(call));
  said_waiting_ = call;
}

void Engine::give_up(const Call& waited, const Deadline& deadline) {
  // The oldest collective holds up those behind it.
  const bool is_collective = !is_message(waited.collective);
  const Call call = is_collective && !calls_.empty() ? calls_.oldest().call() : waited;
  if (is_collective) monitor_->say_waiting(call.number, describe(call));
  const Absent absent =
      is_collective ? monitor_->absent_from(call.number) : monitor_->absent(call.root);
  if (look_for_ends(call)) return;
  const TimeoutError error = state_.timed_out(call, deadline, absent);
  fail_for_all(AbortCause::timed_out, std::make_exception_ptr(error), error.what(), error.rank());
}

void Engine::fail_for_all(AbortCause cause, std::exception_ptr error, const std::string& reason,
                          int lost_rank, int culprit) {
  monitor_->tell(cause, lost_rank, culprit >= 0 ? culprit : state_.culprit(lost_rank), reason);
  fail(std::move(error), culprit);
}

void Engine::fail_for_difference(const CallsDiffer& difference) {
  const Call& own = difference.own();
  fail_for_all(AbortCause::mismatched,
               std::make_exception_ptr(CallsDiffer(state_.where(own), own, difference.peer(),
                                                   monitor_->name(difference.peer()),
                                                   difference.peers_call())),
               as_bytes(own, difference.peers_call()), difference.peer());
}

// If this rank makes the same call as the rank that reports the difference, it differs from the
// other rank in the report; else from the reporting rank.
std::exception_ptr Engine::reported_difference(const Call& call, const AbortNotice& abort) const {
  const auto [tellers, others] = calls_of(abort.reason);
  const Call* const found = calls_.find(tellers.number);
  const Call& own = found != nullptr ? *found : call;
  if (is_message(own.collective) || own.number != tellers.number) {
    return std::make_exception_ptr(UsageError(
        state_.where(call) + describe_difference(monitor_->name(abort.rank), tellers,
                                                 monitor_->name(abort.lost_rank), others)));
  }
  const bool agrees = own == tellers;
  const int peer = agrees ? abort.lost_rank : abort.rank;
  return std::make_exception_ptr(
      CallsDiffer(state_.where(own), own, peer, monitor_->name(peer), agrees ? others : tellers));
}

void Engine::fail(std::exception_ptr error, int culprit) {
  state_.fail(std::move(error));
  transport_->abort();
  for (auto& transmission : calls_.clear()) leak_until_exit(std::move(transmission));
  for (auto& [key, line] : messages_) {
    for (auto& transmission : line.clear()) leak_until_exit(std::move(transmission));
  }
  state_.note_loss(culprit);
}

}  // namespace lockstep::remote
