// SPDX-License-Identifier: BSD-3-Clause
// Runs a function on ranks that are threads, or processes that share memory, all of them or those
// of a host.
#pragma once

#include <functional>
#include <memory>

#include "support/rank_processes.h"
#include "tests/comm/join_on_hosts.h"
#include "tests/support/thread_group.h"

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {

using OnRank = std::function<void(const std::shared_ptr<ProcessGroup>&)>;

inline void run_processes(int size, const OnRank& function) {
  run_ranks(size, [&](Rank& rank) {
    function(init_process_group({.backend = "shm",
                                 .init_method = rank.rendezvous_url(),
                                 .rank = rank.rank(),
                                 .world_size = rank.size(),
                                 .device = at::kCPU}));
  });
}

// Ranks with even numbers are on one host, the others on another.
inline std::shared_ptr<ProcessGroup> join_on_two_hosts(Rank& rank) {
  return join_on_hosts(rank, {}, make_gloo_backend, rank.rank() % 2);
}

inline void run_on_two_hosts(int size, const OnRank& function) {
  run_ranks(size, [&](Rank& rank) { function(join_on_two_hosts(rank)); });
}

inline void run_threads(int size, const OnRank& function) {
  run_rank_threads(size, function);
}

}  // namespace lockstep::testing
