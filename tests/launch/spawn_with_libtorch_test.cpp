// SPDX-License-Identifier: BSD-3-Clause
// What libtorch does in the ranks of a process that has used it.
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const auto refuses = ThrowsMessage<UsageError>(HasSubstr("Call spawn before"));

// The fork has ended those that OpenBLAS started at load.
TEST(SpawnWithLibtorch, CountsThreadsAnewAfterAFork) {
  const auto nothing = [](int) {};
  spawn(1, nothing);
  {
    const std::jthread thread([](std::stop_token stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
    });
    EXPECT_THAT([&] { spawn(1, nothing); }, refuses);
  }
  spawn(1, nothing);
}

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

// The last one here: these threads stay.
TEST(SpawnWithLibtorch, RefusesOnceLibtorchHasComputedWithThreads) {
  at::set_num_threads(2);
  at::empty({4, 500'000}).fill_(1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT([] { spawn(2, [](int) { at::empty({4, 500'000}).fill_(1); }); }, refuses);
  }
}

}  // namespace
}  // namespace lockstep
