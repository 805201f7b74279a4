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

using ::testing::ElementsAre;
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
    EXPECT_THAT([&] { spawn(1, nothing, {.start_method = StartMethod::fork}); }, refuses);
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

// After cuInit() CUDA does not work in a fork, whether CUDA has threads or not.
TEST(SpawnWithLibtorch, StartsRanksAnewOnceAGpuHasBeenUsed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU";
  const auto sum = [] { return at::ones({8}, at::Device(at::kCUDA, 0)).sum().item<double>(); };
  const auto on_the_gpu = [&](int rank) { return rank + sum(); };
  EXPECT_THAT(spawn(2, on_the_gpu), ElementsAre(8, 9));
  EXPECT_EQ(sum(), 8);
  EXPECT_THAT(spawn(2, on_the_gpu), ElementsAre(8, 9));
}

// The last one here: these threads stay.
TEST(SpawnWithLibtorch, StartsRanksAnewOnceLibtorchHasComputedWithThreads) {
  at::set_num_threads(2);
  const auto sum = [] { return at::ones({4, 500'000}).sum().item<double>(); };
  EXPECT_EQ(sum(), 2e6);
  EXPECT_THAT([] { spawn(2, [](int) {}, {.start_method = StartMethod::fork}); }, refuses);
  for (int round = 0; round < 2; ++round) {
    const auto sums = spawn(2, [&](int rank) { return rank + sum(); });
    EXPECT_THAT(sums, ElementsAre(2e6, 2e6 + 1));
  }
}

}  // namespace
}  // namespace lockstep
