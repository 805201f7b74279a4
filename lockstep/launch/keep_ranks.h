// SPDX-License-Identifier: BSD-3-Clause
// What the keeper of ranks is busy with, in its own process.
#pragma once

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/rank_keeper.h"

namespace lockstep {

// Forks the ranks, tells the launcher over the socket what becomes of them, ends what is left when
// the launcher says so or is gone, and exits.
[[noreturn]] void keep_ranks(const Keeping& keeping, pid_t launcher, UniqueFd socket,
                             const MemoryKills& memory_kills) noexcept;

}  // namespace lockstep
