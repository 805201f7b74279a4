// SPDX-License-Identifier: BSD-3-Clause
// The launcher's side of the keeper, the process between the launcher and its ranks.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/exit_status.h"
#include "lockstep/launch/memory_kills.h"
#include "lockstep/launch/rank_process.h"

namespace lockstep {

// The parameters of a keeper.
struct Keeping {
  int ranks = 0;
  // Called in each rank; see fork_rank().
  std::function<void(int rank, const UniqueFd& last_words)> body;
  // The keeper removes these if the launcher is killed.
  std::string store_socket{};
  std::string store_folder{};
};

// Ranks are children of the keeper, which also adopts processes that they leave behind, whatever
// group or session those have moved to. If the launcher is killed, the keeper ends all of them,
// removes the store's folder and reports it on standard error. If the keeper is killed, the ranks
// die with it, and the launcher gets an error. The keeper blocks all signals except SIGKILL and
// SIGSTOP. It keeps none of the launcher's descriptors except standard error.
class RankKeeper {
 public:
  // Forks the keeper, which forks the ranks. The calling thread must block all signals
  // (SignalsBlocked). BackendError if it cannot be forked.
  RankKeeper(const Keeping& keeping, const MemoryKills& memory_kills);
  // Like end() without grace.
  ~RankKeeper();
  RankKeeper(const RankKeeper&) = delete;
  RankKeeper& operator=(const RankKeeper&) = delete;

  pid_t pid() const { return pid_; }
  // Blocks until the next rank, in order, has been started. BackendError if it cannot be started,
  // if the keeper is killed, or if the keeper starts none for half a minute.
  StartedRank next_started();

  // Readable when next_change() has a change.
  int descriptor() const { return socket_.get(); }
  // A rank that ended, stopped or continued; nullopt if there is no news. BackendError, at every
  // call, if the keeper was killed.
  std::optional<RankChange> next_change();
  // Continues the keeper if somebody has stopped it, since a stopped keeper reports nothing.
  void keep_awake();

  // Ends the remaining ranks and their descendants, with SIGKILL after the grace, and then the
  // keeper. Blocks meanwhile.
  void end(std::chrono::milliseconds grace);

 private:
  // nullopt if the keeper has not ended by the deadline.
  std::optional<ExitStatus> await_end(const Deadline& deadline) const;
  [[noreturn]] void report_loss();

  const MemoryKills& memory_kills_;
  pid_t pid_ = -1;
  // Invalid if the system or the descriptor limit allows none.
  UniqueFd pidfd_;
  UniqueFd socket_;
};

}  // namespace lockstep
