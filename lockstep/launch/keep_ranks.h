// SPDX-License-Identifier: BSD-3-Clause
// The ranks' keeper, in its own process; rank_keeper.h is the launcher's side.
#pragma once

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/rank_keeper.h"

namespace lockstep {

// Forks the ranks and reports every change of their state over the socket. When the launcher says
// so or is gone, ends all remaining descendants and exits.
[[noreturn]] void keep_ranks(const Keeping& keeping, pid_t launcher, UniqueFd socket,
                             const MemoryKills& memory_kills) noexcept;

}  // namespace lockstep
