// SPDX-License-Identifier: BSD-3-Clause
// Carries out one rank's calls and messages on a group whose ranks reach each other through a
// transport. Each start, poll and wait advances everything under way, as in local/engine.h. The
// transport may also make progress by itself.
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include <sys/types.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/remote/peer_monitor.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/core/deadline.h"

namespace lockstep::remote {

// Thread-safe. All errors are final: every later caller gets the first one as well.
class Engine final : public TaskEngine {
 public:
  // With `compare_first`, ranks compare each call before it starts, in a stage of its own.
  static std::shared_ptr<Engine> make(std::string backend, Position position,
                                      std::unique_ptr<Transport> transport,
                                      std::unique_ptr<PeerMonitor> monitor,
                                      const Membership& membership, bool compare_first);
  // Leaves the group. Waits briefly for the others to leave too.
  ~Engine() override;

  // Queues the schedule behind the calls started before.
  void start(const SchedulePtr& schedule);
  // Queues the message behind those to or from this peer with this tag.
  void start(const SchedulePtr& message, Tag tag);
  // `task` must be a Schedule.
  bool poll(Task& task) override;
  void wait(Task& task, const Deadline& deadline, Waiting who) override;
  // One round for groups whose calls no thread waits for: advances them, and gives up a call that
  // has lasted longer than `timeout`.
  void watch(std::chrono::milliseconds timeout);
  // Blocks until everything under way has ended, successfully or not, or until the deadline.
  void finish(const Deadline& deadline);

  void abort(const std::string& reason);
  // The same for ranks that made different calls.
  void abort_for_mismatch(const std::string& reason);
  // Tells the peers that an exception ends this rank.
  void leave_failing(const std::string& reason);
  const Position& position() const { return position_; }
  bool compares_first() const { return compare_first_; }
  bool compares() const { return compare_first_ || transport_->compares_calls(); }
  // The local address that leads to the other ranks.
  const std::string& own_host() const { return monitor_->own_host(); }
  const GroupState& state() const { return state_; }

  bool try_advance() override;
  Doorbell* doorbell_if_busy() override { return nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  // Direction, peer and tag.
  using Line = std::tuple<Collective, int, Tag>;

  Engine(std::string backend, Position position, std::unique_ptr<Transport> transport,
         std::unique_ptr<PeerMonitor> monitor, const Membership& membership, bool compare_first);

  // These require mutex_.
  void check_still_there(Call call, std::uint64_t number);
  // True if anything moved. An error of the transport is kept until its cause is known.
  bool advance();
  bool advance(CallLine& line);
  bool idle() const;
  // The oldest call, or the next one if none is under way.
  Call call_now() const;
  const Schedule& oldest() const;
  // Checks for aborts and lost peers, and records an error if there is one.
  void look_around();
  bool look_for_ends(const Call& call);
  // A rank that said farewell, so that this call never completes; -1 if there is none.
  int left_before(const Call& call) const;
  void explain_transport(const Call& call);
  void report_waiting(Clock::duration waited);
  // Ends the group because a wait for this call has timed out.
  void give_up(const Call& waited, const Deadline& deadline);
  void fail_for_difference(const CallsDiffer& difference);
  // The error of a rank that was told that its call, or its next one, differs from another rank's.
  std::exception_ptr reported_difference(const Call& call, const AbortNotice& notice) const;
  // Like GroupState::fail; also abandons what is under way.
  void fail(std::exception_ptr error, int culprit = -1);
  void fail_for_all(AbortCause cause, std::exception_ptr error, const std::string& reason,
                    int lost_rank = -1, int culprit = -1);
  // Ends the group for a rank that said farewell. `under_way`: why the call failed, if it had
  // begun.
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
  // The call that this rank last said it waits in.
  std::optional<Call> reported_wait_;
};

}  // namespace lockstep::remote
