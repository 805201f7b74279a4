// SPDX-License-Identifier: BSD-3-Clause
// Starts, polls and waits for the calls of ranks that a transport joins.
#include "lockstep/comm/remote/engine.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "lockstep/comm/remote/leak_until_exit.h"
#include "lockstep/comm/remote/payload.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;

// How long a waiting rank goes without checking whether its peers are alive.
constexpr auto kLookAround = 20ms;

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
      say_waiting(now - begin);
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
  say_waiting(Clock::now() - oldest().since());
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
  const std::string message = state_.where(line.oldest().call()) + error.what();
  fail_for_all(AbortCause::mismatched, std::make_exception_ptr(UsageError(message)), message);
  return true;
} catch (const OutOfMemory& error) {
  const std::string message = state_.where(line.oldest().call()) + error.what();
  fail_for_all(AbortCause::requested, std::make_exception_ptr(BackendError(message)), message);
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
               std::make_exception_ptr(UsageError(state_.where(call_now()) + reason)), reason);
  monitor_->flush();
}

Call Engine::call_now() const {
  return idle() ? Call{.number = calls_.last_number() + 1} : oldest().call();
}

}  // namespace lockstep::remote
