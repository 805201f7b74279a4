// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/network/network_engine.h"

#include <algorithm>

#include <unistd.h>

#include "lockstep/collective/network/payload.h"
#include "lockstep/collective/network/plans.h"
#include "lockstep/core/error.h"

namespace lockstep::network {
namespace {

using namespace std::chrono_literals;

// How long a waiting rank goes without looking whether its peers are alive.
constexpr auto kLookAround = 20ms;

}  // namespace

NetworkEngine::NetworkEngine(std::string backend, Place place, std::unique_ptr<Carrier> carrier,
                             std::unique_ptr<Lifeline> lifeline, const Membership& membership,
                             bool compare_first)
    : backend_(std::move(backend)),
      place_(place),
      losses_(membership, lifeline->local_pids()),
      compare_first_(compare_first),
      owner_(::getpid()),
      carrier_(std::move(carrier)),
      lifeline_(std::move(lifeline)) {}

std::shared_ptr<NetworkEngine> NetworkEngine::make(std::string backend, Place place,
                                                   std::unique_ptr<Carrier> carrier,
                                                   std::unique_ptr<Lifeline> lifeline,
                                                   const Membership& membership,
                                                   bool compare_first) {
  std::shared_ptr<NetworkEngine> engine(new NetworkEngine(std::move(backend), place,
                                                          std::move(carrier), std::move(lifeline),
                                                          membership, compare_first));
  share_progress(engine);
  return engine;
}

NetworkEngine::~NetworkEngine() {
  if (::getpid() != owner_) {
    // A forked child has neither the threads nor the connections of what it inherited.
    static_cast<void>(carrier_.release());
    static_cast<void>(lifeline_.release());
    return;
  }
  lifeline_->say_farewell(calls_.last_number());
  lifeline_->wait_for_farewells();
  // What the carrier has on its way may never arrive: it is left to the end of the process.
  if (error_) static_cast<void>(carrier_.release());
}

void NetworkEngine::start(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  plan->mark(carrier_->mark());
  check_still_there(plan->call(), calls_.last_number() + 1);
  Call call = plan->call();
  call.number = calls_.last_number() + 1;
  if (compare_first_) plan->begin_with(comparison(call, place_));
  calls_.push(plan);
  advance();
}

void NetworkEngine::start(const Plan& message, Lane lane) {
  const std::lock_guard lock(mutex_);
  message->mark(carrier_->mark());
  const Call& call = message->call();
  CallLine& line = messages_[{call.collective, call.root, lane}];
  check_still_there(call, line.last_number() + 1);
  line.push(message);
  advance();
}

void NetworkEngine::check_still_there(Call call, std::uint64_t number) {
  call.number = number;
  if (!error_) {
    lifeline_->look();
    look_for_ends(call);
  }
  check_error();
}

bool NetworkEngine::poll(const PlannedCall& call) {
  if (call.done()) return true;
  const std::lock_guard lock(mutex_);
  if (!call.done()) {
    check_error();
    advance();
    if (!call.done() && Clock::now() - last_look_ > kLookAround) look_around();
    if (!call.done()) check_error();
  }
  return call.done();
}

void NetworkEngine::wait(PlannedCall& call, const Deadline& deadline, Waiting who) {
  const auto begin = Clock::now();
  bool late = false;
  while (!call.done()) {
    const std::uint64_t events = carrier_->events();
    bool moved = false;
    {
      const std::lock_guard lock(mutex_);
      check_error();
      moved = advance();
      if (call.done()) return;
      if (who == Waiting::thread_or_stream && !error_ && call.order_current_stream()) return;
      const auto now = Clock::now();
      if (now - last_look_ > kLookAround) look_around();
      say_waiting(now - begin);
      // Once more when it is late: this process itself may have been stopped until now.
      if (late && !call.done() && !error_) give_up(call.call(), deadline);
      check_error();
      late = deadline.passed(now);
    }
    // Peers may need this process's part on another group before they do theirs on this one.
    if (!moved && !advance_others(*this)) carrier_->wait_for_event(events, kLookAround);
  }
}

void NetworkEngine::watch(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  if (error_ || idle()) return;
  advance();
  look_around();
  if (error_ || idle()) return;
  say_waiting(Clock::now() - oldest().since());
  if (Clock::now() - oldest().since() > timeout) give_up(oldest().call(), Deadline::after(timeout));
}

void NetworkEngine::finish(const Deadline& deadline) {
  while (::getpid() == owner_ && !deadline.passed()) {
    {
      const std::lock_guard lock(mutex_);
      if (error_ || idle()) return;
      advance();
      look_around();
    }
    carrier_->wait_for_event(carrier_->events(), kLookAround);
  }
}

bool NetworkEngine::try_advance() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && !error_ && !idle() && advance();
}

bool NetworkEngine::idle() const {
  return calls_.empty() &&
         std::ranges::all_of(messages_, [](const auto& line) { return line.second.empty(); });
}

bool NetworkEngine::advance() {
  bool moved = advance(calls_);
  for (auto& [key, line] : messages_) moved |= advance(line);
  return moved;
}

bool NetworkEngine::advance(CallLine& line) try {
  return !error_ && line.advance(*carrier_);
} catch (const CallsDiffer& error) {
  fail_for_difference(error);
  return true;
} catch (const UsageError& error) {
  const std::string message = where(line.oldest().call()) + error.what();
  fail_for_all(AbortCause::mismatched, std::make_exception_ptr(UsageError(message)), message);
  return true;
} catch (const OutOfMemory& error) {
  const std::string message = where(line.oldest().call()) + error.what();
  fail_for_all(AbortCause::requested, std::make_exception_ptr(BackendError(message)), message);
  return true;
} catch (const std::exception& error) {
  // Usually because a peer has gone; the lifeline tells which.
  if (carrier_failure_.empty()) {
    carrier_failure_ = first_line(error);
    carrier_failed_ = Clock::now();
  }
  look_around();
  return false;
}

const PlannedCall& NetworkEngine::oldest() const {
  if (!calls_.empty()) return calls_.oldest();
  return std::ranges::find_if(messages_, [](const auto& line) { return !line.second.empty(); })
      ->second.oldest();
}

void NetworkEngine::leave_failing(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;  // the peers know
  lifeline_->say_farewell(calls_.last_number(), reason, losses_.culprit());
}

void NetworkEngine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  fail_for_all(AbortCause::requested,
               std::make_exception_ptr(
                   PeerLost(place_.rank, where_now() + "this rank ended the group: " + reason)),
               reason);
  // A call that another rank makes after this one has returned must not succeed any more.
  lifeline_->wait_until_told();
}

void NetworkEngine::end_for_mismatch(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  fail_for_all(AbortCause::mismatched, std::make_exception_ptr(UsageError(where_now() + reason)),
               reason);
  lifeline_->wait_until_told();
}

std::string NetworkEngine::where_now() const {
  return where(idle() ? Call{.number = calls_.last_number() + 1} : oldest().call());
}

}  // namespace lockstep::network
