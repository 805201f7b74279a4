// SPDX-License-Identifier: BSD-3-Clause
// Carries out one rank's calls and messages on a group whose ranks reach each other through a
// transport. Each start, poll and wait advances all that is under way, as in memory/engine.h; what
// the transport does by itself goes on meanwhile.
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include <sys/types.h>

#include "lockstep/comm/core/calls_differ.h"
#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/core/staged_operation.h"
#include "lockstep/comm/remote/peer_monitor.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/core/deadline.h"

namespace lockstep::remote {

// Thread-safe. All errors are final: the first one is thrown to every later caller as well.
class Engine final : public lockstep::Engine {
 public:
  // With `compare_first`, ranks compare their calls before each, in a stage of its own.
  static std::shared_ptr<Engine> make(std::string backend, Position position,
                                      std::unique_ptr<Transport> transport,
                                      std::unique_ptr<PeerMonitor> monitor,
                                      const Membership& membership, bool compare_first);
  // Leaves the group. Waits a moment for the others to leave as well.
  ~Engine() override;

  // Takes its turn behind the calls started before.
  void start(const SchedulePtr& schedule);
  // Takes its turn behind the messages to or from this peer on this tag.
  void start(const SchedulePtr& message, Tag tag);
  // Of a task that is a Schedule.
  bool poll(Task& task) override;
  void wait(Task& task, const Deadline& deadline, Waiting who) override;
  // Once, for groups whose calls nobody has to wait for: advances them, and gives up one that has
  // lasted so long.
  void watch(std::chrono::milliseconds timeout);
  // Until all that is under way has ended, well or not.
  void finish(const Deadline& deadline);

  void abort(const std::string& reason);
  // The same for ranks that made different calls.
  void abort_for_mismatch(const std::string& reason);
  // Tells the peers that an exception ends this rank.
  void leave_failing(const std::string& reason);
  const Position& position() const { return position_; }
  bool compares_first() const { return compare_first_; }
  bool compares() const { return compare_first_ || transport_->compares_calls(); }
  // The address of this machine that leads to the other ranks.
  const std::string& own_host() const { return monitor_->own_host(); }
  const GroupState& state() const { return state_; }

  bool try_advance() override;
  local::ControlBlock* doorbell_if_busy() override { return nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  // Direction, peer and tag.
  using Line = std::tuple<Collective, int, Tag>;

  Engine(std::string backend, Position position, std::unique_ptr<Transport> transport,
         std::unique_ptr<PeerMonitor> monitor, const Membership& membership, bool compare_first);

  // With mutex_ held.
  void check_still_there(Call call, std::uint64_t number);
  // True if anything moved. What the transport reports is kept until it is known why.
  bool advance();
  bool advance(CallLine& line);
  bool idle() const;
  // The oldest call, or the next one.
  Call call_now() const;
  const Schedule& oldest() const;
  // Looks for aborts and lost peers, and records an error if there is one.
  void look_around();
  bool look_for_ends(const Call& call);
  // A rank whose farewell makes it certain that this call never completes; -1 if there is none.
  int left_before(const Call& call) const;
  void explain_transport(const Call& call);
  void say_waiting(Clock::duration waited);
  // Ends the group for a wait for this call that came to nothing.
  void give_up(const Call& waited, const Deadline& deadline);
  void fail_for_difference(const CallsDiffer& difference);
  // The error of a rank that was told that its call, or the next one, differs from another's.
  std::exception_ptr told_difference(const Call& call, const AbortNotice& notice) const;
  // As GroupState::fail, and gives up what is under way.
  void fail(std::exception_ptr error, int culprit = -1);
  void fail_for_all(AbortCause cause, std::exception_ptr error, const std::string& reason,
                    int lost_rank = -1, int culprit = -1);
  // For a rank that has said farewell. `under_way`: why the call failed, if it was begun.
  void fail_for_farewell(const Call& call, int rank, const std::string& under_way = {});

  const Position position_;
  const bool compare_first_;
  const pid_t owner_;

  std::mutex mutex_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<PeerMonitor> monitor_;
  GroupState state_;
  CallLine calls_;
  std::map<Line, CallLine> messages_;
  Clock::time_point last_look_;
  std::string transport_failure_;
  Clock::time_point transport_failed_;
  // What it has told last that it waits in.
  std::optional<Call> said_waiting_;
};

}  // namespace lockstep::remote
