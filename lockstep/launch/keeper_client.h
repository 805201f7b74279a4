// SPDX-License-Identifier: BSD-3-Clause
// The launcher's end of its keeper, the process between the launcher and its ranks.
#pragma once

#include <chrono>
#include <optional>

#include <sys/types.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/exit_status.h"
#include "lockstep/launch/keeper_messages.h"
#include "lockstep/launch/keeper_process.h"
#include "lockstep/launch/rank_process.h"

namespace lockstep {

// The keeper was killed, and the ranks with it.
class KeeperLost : public BackendError {
 public:
  using BackendError::BackendError;
};

// Ranks are children of the keeper, which also adopts processes that they leave behind, whatever
// group or session those have moved to. If the launcher is killed, the keeper ends all of them,
// removes the store's folder and reports it on standard error. If the keeper is killed, the ranks
// die with it, and the launcher gets an error. The keeper blocks all signals except SIGKILL and
// SIGSTOP. It keeps none of the launcher's descriptors except standard error, unless the
// configuration says so.
class KeeperClient {
 public:
  // Forks the keeper, which forks the ranks. The calling thread must block all signals
  // (SignalsBlocked). BackendError if it cannot be forked.
  KeeperClient(const KeeperConfig& config, const MemoryKills& memory_kills);
  // Like end() without grace.
  ~KeeperClient();
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  pid_t pid() const { return pid_; }
  // Blocks until the next rank, in order, has been started. BackendError if it cannot be started
  // or if the keeper starts none for half a minute, KeeperLost if the keeper is killed.
  StartedRank next_started();

  // Starts a further rank, whose number follows those of the others; next_message() then has a
  // StartedRank or a StartFailed.
  void start(const PlacedRank& start) { send_to_keeper(socket_.get(), start); }

  // Readable when next_message() has a message.
  int descriptor() const { return socket_.get(); }
  // A rank that ended, stopped or continued, or a further one that was started or could not be;
  // nullopt if there is no news. KeeperLost, at every call, if the keeper was killed.
  std::optional<KeeperMessage> next_message();
  // Continues the keeper if a signal has stopped it, since a stopped keeper reports nothing.
  void keep_awake();

  // Ends the remaining ranks and their descendants, with SIGKILL after the grace, and then the
  // keeper. Blocks meanwhile.
  void end(std::chrono::milliseconds grace);

 private:
  // nullopt if the keeper has not ended by the deadline.
  std::optional<ExitStatus> await_end(const Deadline& deadline) const;
  [[noreturn]] void throw_lost();

  const MemoryKills& memory_kills_;
  pid_t pid_ = -1;
  // Invalid if the system or the descriptor limit allows none.
  UniqueFd pidfd_;
  UniqueFd socket_;
};

}  // namespace lockstep
