// SPDX-License-Identifier: BSD-3-Clause
// Starts, polls and waits for the calls of ranks that a transport joins.
#include "lockstep/comm/remote/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/remote/leak_until_exit.h"
#include "lockstep/comm/remote/monitor_message.h"
#include "lockstep/comm/remote/payload.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;

// How long a waiting rank goes without checking whether its peers are alive.
constexpr auto kLookAround = 20ms;

// After waiting this long in one call, a rank tells the monitor's server.
constexpr auto kReportWaitAfter = 100ms;
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

Engine::Engine(std::string backend, Position position, std::unique_ptr<Transport> transport,
               std::unique_ptr<PeerMonitor> monitor, const Membership& membership,
               bool compare_first)
    : position_(position),
      compare_first_(compare_first),
      owner_(::getpid()),
      transport_(std::move(transport)),
      monitor_(std::move(monitor)),
      state_(std::move(backend), membership, monitor_->local_pids(),
             [monitor = monitor_.get()](int rank) { return monitor->name(rank); }) {}

std::shared_ptr<Engine> Engine::make(std::string backend, Position position,
                                     std::unique_ptr<Transport> transport,
                                     std::unique_ptr<PeerMonitor> monitor,
                                     const Membership& membership, bool compare_first) {
  std::shared_ptr<Engine> engine(new Engine(std::move(backend), position, std::move(transport),
                                            std::move(monitor), membership, compare_first));
  share_progress(engine);
  return engine;
}

Engine::~Engine() {
  if (::getpid() != owner_) {
    // A forked child has neither the threads nor the connections of the objects that it inherits.
    static_cast<void>(transport_.release());
    static_cast<void>(monitor_.release());
    return;
  }
  monitor_->say_farewell(calls_.last_number());
  monitor_->wait_for_farewells();
  // Transmissions under way may never arrive, so they stay until the process ends.
  if (state_.failed()) leak_until_exit(std::move(transport_));
}

void Engine::start(const SchedulePtr& schedule) {
  const std::lock_guard lock(mutex_);
  schedule->mark(transport_->mark());
  check_still_there(schedule->call(), calls_.last_number() + 1);
  Call call = schedule->call();
  call.number = calls_.last_number() + 1;
  if (compare_first_) schedule->begin_with(comparison(call, position_));
  calls_.push(schedule);
  advance();
}

void Engine::start(const SchedulePtr& message, Tag tag) {
  const std::lock_guard lock(mutex_);
  message->mark(transport_->mark());
  const Call& call = message->call();
  CallLine& line = messages_[{call.collective, call.root, tag}];
  check_still_there(call, line.last_number() + 1);
  line.push(message);
  advance();
}

void Engine::check_still_there(Call call, std::uint64_t number) {
  call.number = number;
  if (!state_.failed()) {
    monitor_->look();
    look_for_ends(call);
  }
  state_.check();
}

bool Engine::poll(Task& call) {
  if (call.done()) return true;
  const std::lock_guard lock(mutex_);
  if (!call.done()) {
    state_.check();
    advance();
    if (!call.done() && Clock::now() - last_look_ > kLookAround) look_around();
    if (!call.done()) state_.check();
  }
  return call.done();
}

void Engine::wait(Task& task, const Deadline& deadline, Waiting who) {
  auto& call = static_cast<Schedule&>(task);
  const auto begin = Clock::now();
  bool late = false;
  while (!call.done()) {
    const std::uint64_t events = transport_->events();
    bool moved = false;
    {
      const std::lock_guard lock(mutex_);
      state_.check();
      moved = advance();
      if (call.done()) return;
      if (who == Waiting::thread_or_stream && !state_.failed() && call.order_current_stream())
        return;
      const auto now = Clock::now();
      if (now - last_look_ > kLookAround) look_around();
      report_waiting(now - begin);
      // Give up only on a second late check: this process itself may have been stopped until now.
      if (late && !call.done() && !state_.failed()) give_up(call.call(), deadline);
      state_.check();
      late = deadline.passed(now);
    }
    // Peers may need this process's part on another group before they do theirs on this one.
    if (!moved && !advance_others(*this)) transport_->wait_for_event(events, kLookAround);
  }
}

void Engine::watch(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  if (state_.failed() || idle()) return;
  advance();
  look_around();
  if (state_.failed() || idle()) return;
  report_waiting(Clock::now() - oldest().since());
  if (Clock::now() - oldest().since() > timeout) give_up(oldest().call(), Deadline::after(timeout));
}

void Engine::finish(const Deadline& deadline) {
  while (::getpid() == owner_ && !deadline.passed()) {
    {
      const std::lock_guard lock(mutex_);
      if (state_.failed() || idle()) return;
      advance();
      look_around();
    }
    transport_->wait_for_event(transport_->events(), kLookAround);
  }
}

bool Engine::try_advance() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && !state_.failed() && !idle() && advance();
}

bool Engine::idle() const {
  return calls_.empty() &&
         std::ranges::all_of(messages_, [](const auto& line) { return line.second.empty(); });
}

bool Engine::advance() {
  bool moved = advance(calls_);
  for (auto& [key, line] : messages_) moved |= advance(line);
  return moved;
}

bool Engine::advance(CallLine& line) try {
  return !state_.failed() && line.advance(*transport_);
} catch (const CallsDiffer& error) {
  fail_for_difference(error);
  return true;
} catch (const UsageError& error) {
  const UsageError whole(within(state_.context(line.oldest().call()), error));
  fail_for_all(AbortCause::mismatched, std::make_exception_ptr(whole), short_message(whole));
  return true;
} catch (const OutOfMemory& error) {
  const BackendError whole(within(state_.context(line.oldest().call()), error));
  fail_for_all(AbortCause::requested, std::make_exception_ptr(whole), short_message(whole));
  return true;
} catch (const std::exception& error) {
  // Usually because a peer has gone; the peer monitor knows which one.
  if (transport_failure_.empty()) {
    transport_failure_ = first_line(error);
    transport_failed_ = Clock::now();
  }
  look_around();
  return false;
}

const Schedule& Engine::oldest() const {
  if (!calls_.empty()) return calls_.oldest();
  return std::ranges::find_if(messages_, [](const auto& line) { return !line.second.empty(); })
      ->second.oldest();
}

void Engine::leave_failing(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;  // the peers know already
  monitor_->say_farewell(calls_.last_number(), reason, state_.culprit());
}

void Engine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;
  fail_for_all(AbortCause::requested,
               std::make_exception_ptr(state_.ended_here(call_now(), reason)), reason);
  // A call that another rank makes after this function has returned must not succeed.
  monitor_->flush();
}

void Engine::abort_for_mismatch(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;
  fail_for_all(AbortCause::mismatched,
               std::make_exception_ptr(UsageError(state_.context(call_now()), reason)), reason);
  monitor_->flush();
}

Call Engine::call_now() const {
  return idle() ? Call{.number = calls_.last_number() + 1} : oldest().call();
}

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
               short_message(gone), rank, culprit);
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
    const BackendError error(
        state_.context(call),
        "the connection to another rank failed, though none is known to have died: " +
            transport_failure_);
    fail_for_all(AbortCause::requested, std::make_exception_ptr(error), short_message(error));
  }
}

void Engine::report_waiting(Clock::duration waited) {
  if (waited < kReportWaitAfter || state_.failed() || idle()) return;
  const Call& call = oldest().call();
  if (call == reported_wait_) return;
  monitor_->report_waiting(is_message(call.collective) ? 0 : call.number, describe(call));
  reported_wait_ = call;
}

void Engine::give_up(const Call& waited, const Deadline& deadline) {
  // The oldest collective holds up those behind it.
  const bool is_collective = !is_message(waited.collective);
  const Call call = is_collective && !calls_.empty() ? calls_.oldest().call() : waited;
  if (is_collective) monitor_->report_waiting(call.number, describe(call));
  const Absent absent =
      is_collective ? monitor_->absent_from(call.number) : monitor_->absent(call.root);
  if (look_for_ends(call)) return;
  const TimeoutError error = state_.timed_out(call, deadline, absent);
  fail_for_all(AbortCause::timed_out, std::make_exception_ptr(error), short_message(error),
               error.rank());
}

void Engine::fail_for_all(AbortCause cause, std::exception_ptr error, const std::string& reason,
                          int lost_rank, int culprit) {
  monitor_->tell(cause, lost_rank, culprit >= 0 ? culprit : state_.culprit(lost_rank), reason);
  fail(std::move(error), culprit);
}

void Engine::fail_for_difference(const CallsDiffer& difference) {
  const Call& own = difference.own();
  fail_for_all(AbortCause::mismatched,
               std::make_exception_ptr(CallsDiffer(state_.context(own), own, difference.peer(),
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
    ErrorDetails details = describe_difference(monitor_->name(abort.rank), tellers,
                                               monitor_->name(abort.lost_rank), others);
    details.contexts = {state_.context(call)};
    return std::make_exception_ptr(UsageError(std::move(details)));
  }
  const bool agrees = own == tellers;
  const int peer = agrees ? abort.lost_rank : abort.rank;
  return std::make_exception_ptr(
      CallsDiffer(state_.context(own), own, peer, monitor_->name(peer), agrees ? others : tellers));
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
