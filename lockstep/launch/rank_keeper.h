// SPDX-License-Identifier: BSD-3-Clause
// The process between a launcher and its ranks, seen from the launcher.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/memory_kills.h"
#include "lockstep/launch/rank_process.h"

namespace lockstep {

// What a keeper does.
struct Keeping {
  int ranks = 0;
  // Each rank calls it, as fork_rank() has it.
  std::function<void(int rank, const UniqueFd& last_words)> body;
  // What goes if the launcher is killed.
  std::string store_socket{};
  std::string store_folder{};
};

// Ranks are children of the keeper, and what they leave behind becomes its child too, whatever
// group or session that moved to. So whichever of the two is killed, the other one ends all: the
// keeper also removes the store's folder then and says on standard error what happened; the
// launcher finds that the ranks have died with their keeper. A signal cannot stop the keeper unless
// it is SIGKILL or SIGSTOP. It holds no descriptor of the launcher's but standard error.
class RankKeeper {
 public:
  // Forks it, and it the ranks. The calling thread must hold back all signals (SignalsBlocked).
  // BackendError if it cannot be forked.
  RankKeeper(const Keeping& keeping, const MemoryKills& memory_kills);
  // As end() without grace.
  ~RankKeeper();
  RankKeeper(const RankKeeper&) = delete;
  RankKeeper& operator=(const RankKeeper&) = delete;

  pid_t pid() const { return pid_; }
  // The ranks in their order. BackendError if one cannot be started, or if the keeper is killed or
  // does not go on for half a minute.
  StartedRank next_started();

  // Readable when next_change() has something.
  int descriptor() const { return socket_.get(); }
  // A rank ended, was stopped, or goes on. BackendError, always again, if the keeper was killed.
  std::optional<RankChange> next_change();

  // Ends what is left of the ranks and their descendants, SIGKILL after the grace, and the keeper.
  void end(std::chrono::milliseconds grace);

 private:
  [[noreturn]] void report_loss();

  const MemoryKills& memory_kills_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd socket_;
};

}  // namespace lockstep
