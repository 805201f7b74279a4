// SPDX-License-Identifier: BSD-3-Clause
// What libtorch does in the ranks of a process that has used it.
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/launch/spawn.h"

namespace lockstep {
namespace {

// libtorch loses its threads in a fork; the first to compute must not find that out all at once.
TEST(SpawnWithLibtorch, ThreadsOfARankMayComputeThoughTheParentHasSetTheirNumber) {
  at::set_num_threads(1);
  for (int round = 0; round < 40; ++round) {  // without renew_libtorchs_threads() some fail
    spawn(2, [](int) {
      const at::Tensor tensor = at::empty({4, 500'000});
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) threads.emplace_back([row = tensor[i]] { row.fill_(1); });
    });
  }
}

}  // namespace
}  // namespace lockstep
