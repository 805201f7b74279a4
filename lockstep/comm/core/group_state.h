// SPDX-License-Identifier: BSD-3-Clause
// Why a group has ended: the first error, the rank at fault, and the errors about peers
// that died, left or do not answer. Each engine has one.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Why a rank ended a group for all of its ranks.
enum class AbortCause : std::uint32_t {
  none,
  requested,   // ProcessGroup::abort
  timed_out,   // its wait timed out
  mismatched,  // ranks made different calls
  lost,        // it saw a peer die
  left,        // it saw a peer leave too early
};

// What the rank tells its peers.
struct AbortNotice {
  int rank = -1;
  AbortCause cause = AbortCause::none;
  // The rank that it lost or waited for; -1 if none.
  int lost_rank = -1;
  // The job rank at fault; -1 if unknown.
  int culprit = -1;
  std::string reason = {};
};

// The error that the other ranks throw; its type depends on the cause.
std::exception_ptr error_of(const AbortNotice& notice, ErrorDetails details);

// Ranks by the call that they were last seen waiting in, as describe(Call) puts it; "" if that call
// is unknown or past.
using Absent = std::map<std::string, std::vector<int>>;

// "rank 3 (pid 12), and rank 1 (pid 10), rank 2 (pid 11), last seen waiting in barrier #1"
std::string describe(const Absent& absent, const std::function<std::string(int rank)>& name);

// How a peer went away. `connection_lost`: nothing more is known about its process.
enum class PeerEnd { died, connection_lost, left, failed };

// Another rank or host cannot allocate its part of a tensor that every rank needs.
BackendError lacks_memory(const ErrorContext& context, std::string_view who);

// Not thread-safe: its engine holds a lock. The functions that make errors only read.
class GroupState {
 public:
  // "rank 3 (pid 4711)"
  using Name = std::function<std::string(int rank)>;

  // `pids`: the ranks' process ids, or empty if the ranks are not known to share this machine.
  GroupState(std::string backend, const Membership& membership, std::vector<pid_t> pids, Name name);

  const std::string& backend() const { return backend_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  ErrorContext context(const Call& call) const;

  bool failed() const { return error_ != nullptr; }
  // Throws the first error, if there is one.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }
  // Keeps the first error.
  void fail(std::exception_ptr error) { error_ = std::move(error); }
  // Notes the loss that the error stands for, and tells the launcher: blocks for a second at most.
  // The culprit is a job rank; -1 if it is the rank that the error names.
  void note_loss(int culprit) const { losses_.note(error_, culprit); }
  // The job rank to name to the peers as the culprit.
  int culprit(int lost_rank = -1) const { return losses_.culprit(lost_rank); }

  // Errors of a rank in this call.

  // The deadline has passed. If no rank is absent, all ranks have made the call, and the network is
  // delaying it.
  TimeoutError timed_out(const Call& call, const Deadline& deadline, const Absent& absent) const;
  // A peer has ended the group; the error's type depends on the cause.
  std::exception_ptr ended_by_peer(const Call& call, const AbortNotice& notice) const;
  // A peer is gone. `reason`: why it failed, or what the transport says about the call under way.
  PeerLost peer_gone(const Call& call, int peer, PeerEnd how, const std::string& reason = {}) const;
  // This rank called ProcessGroup::abort.
  PeerLost ended_here(const Call& call, const std::string& reason) const;
  // Evaluates the ranks' votes on new memory: BackendError unless all have it. `refusal` is this
  // rank's own error, if it has none.
  void check_votes(const Call& call, std::span<const std::uint8_t> votes,
                   const std::optional<BackendError>& refusal) const;

 private:
  const std::string backend_;
  const int rank_;
  const int size_;
  const Name name_;
  const GroupLosses losses_;
  std::exception_ptr error_;
};

}  // namespace lockstep
