// SPDX-License-Identifier: BSD-3-Clause
// The code of the keeper, the process between a launcher and its ranks. The launcher's end is in
// keeper_client.h.
#pragma once

#include <functional>
#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/exit_status.h"
#include "lockstep/launch/rank_process.h"

namespace lockstep {

struct KeeperConfig {
  // Started at once, in the places of the same numbers.
  int ranks = 0;
  // Called in the keeper before it forks: closes the launcher's descriptors.
  std::function<void()> leave_to_parent;
  // Called in each rank; see fork_rank().
  std::function<void(const PlacedRank& start, const UniqueFd& last_words)> body;
  // The keeper removes it if the launcher is killed.
  std::string store_folder{};
  // Whether ranks that are started later inherit the descriptors that those started at once have.
  bool keep_descriptors = false;
};

// Forks the ranks, and further ones when the launcher says so, and reports every change of their
// state over the socket. When the launcher says so or is gone, ends all remaining descendants and
// exits. If the launcher is gone, first kills the ranks, removes the store's folder, and says so on
// standard error.
//
// All signals must be blocked (SignalsBlocked) in the calling process. Unless it is to keep the
// launcher's descriptors, it keeps only the socket and standard error of them.
[[noreturn]] void run_keeper(const KeeperConfig& config, pid_t launcher, UniqueFd socket,
                             const MemoryKills& memory_kills) noexcept;

}  // namespace lockstep
