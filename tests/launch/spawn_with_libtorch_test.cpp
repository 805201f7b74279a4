// SPDX-License-Identifier: BSD-3-Clause
// What libtorch does in the ranks of a process that has used it.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "support/captured_warnings.h"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const auto refuses = ThrowsMessage<UsageError>(HasSubstr("call spawn before"));

// The tensor that a rank makes, as it comes back.
template <class Function>
at::Tensor returned(Function make) {
  return spawn(1, [&](int) -> at::Tensor { return make(); }).at(0);
}

TEST(Warn, NamesThePublicFunctionAndNoFile) {
  ::testing::internal::CaptureStderr();
  libtorch::warn("spawn", "too many ranks");
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::MatchesRegex(".*lockstep:0\\] Warning: too many ranks \\(function spawn\\)\n"));
}

TEST(SpawnWithLibtorch, ReturnsTensors) {
  const std::vector<at::Tensor> weights = spawn(2, [](int rank) {
    return at::full({2, 3}, rank + 0.5).requires_grad_();
  });
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_TRUE(at::equal(weights[1], at::full({2, 3}, 1.5)));
  EXPECT_FALSE(weights[1].requires_grad());
  EXPECT_FALSE(returned([] { return at::Tensor(); }).defined());
}

TEST(SpawnWithLibtorch, TensorsKeepTypeSizesAndValues) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kLong, at::kBool}) {
    const at::Tensor tensor = returned([&] { return at::arange(6, at::kInt).to(type); });
    EXPECT_TRUE(at::equal(tensor, at::arange(6, at::kInt).to(type))) << toString(type);
    EXPECT_EQ(tensor.scalar_type(), type);
  }
  EXPECT_EQ(returned([] { return at::full({}, 7, at::kLong); }).item<int>(), 7);
  EXPECT_EQ(returned([] {
              return at::zeros({3, 0, 2});
            }).sizes(),
            (std::vector<std::int64_t>{3, 0, 2}));
  const at::Tensor transposed = returned([] { return at::arange(6).view({2, 3}).t(); });
  EXPECT_TRUE(at::equal(transposed, at::arange(6).view({2, 3}).t()));
  EXPECT_TRUE(transposed.is_contiguous());
  const auto complex = [] { return at::complex(at::ones({2}), at::full({2}, 3.0)).conj(); };
  EXPECT_TRUE(at::equal(returned(complex), complex().resolve_conj()));
}

TEST(SpawnWithLibtorch, ReturnsListsOfTensors) {
  const auto lists = spawn(2, [](int rank) {
    return std::vector<at::Tensor>{at::ones({rank}), at::Tensor(), at::zeros({2}, at::kByte)};
  });
  ASSERT_EQ(lists.at(1).size(), 3u);
  EXPECT_TRUE(at::equal(lists[1][0], at::ones({1})));
  EXPECT_FALSE(lists[1][1].defined());
  EXPECT_TRUE(at::equal(lists[1][2], at::zeros({2}, at::kByte)));
}

TEST(SpawnWithLibtorch, RefusesTensorsWithoutOrdinaryElements) {
  const auto ordinary = ThrowsMessage<RankFailed>(HasSubstr("return an ordinary one"));
  EXPECT_THAT([] { returned([] { return at::ones({2}).to_sparse(); }); }, ordinary);
  EXPECT_THAT([] { returned([] { return at::ones({2}, at::Device(at::kMeta)); }); }, ordinary);
}

TEST(SpawnWithLibtorch, RefusesBytesThatAreNoTensor) {
  using Bytes = spawn_detail::ResultBytes<at::Tensor>;
  const std::string bytes = Bytes::pack(at::ones({2, 3}));
  EXPECT_TRUE(at::equal(Bytes::unpack(bytes), at::ones({2, 3})));
  EXPECT_THROW(Bytes::unpack(bytes.substr(0, bytes.size() - 1)), BackendError);
  EXPECT_THROW(Bytes::unpack(bytes.substr(0, 3)), BackendError);
}

TEST(SpawnWithLibtorch, WarnsThroughLibtorch) {
  const testing::CapturedWarnings warnings;
  spawn_detail::warn("a text");
  EXPECT_THAT(warnings.messages(), ElementsAre("a text"));
}

// The fork has ended those that OpenBLAS started at load.
TEST(SpawnWithLibtorch, CountsThreadsAgainAfterAFork) {
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
TEST(SpawnWithLibtorch, RunsTheProgramAgainOnceAGpuHasBeenUsed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU";
  const auto sum = [] { return at::ones({8}, at::Device(at::kCUDA, 0)).sum().item<double>(); };
  const auto on_the_gpu = [&](int rank) { return rank + sum(); };
  EXPECT_THAT(spawn(2, on_the_gpu), ElementsAre(8, 9));
  EXPECT_EQ(sum(), 8);
  EXPECT_THAT(spawn(2, on_the_gpu), ElementsAre(8, 9));
}

// The last one here: these threads stay.
TEST(SpawnWithLibtorch, RunsTheProgramAgainOnceLibtorchHasComputedWithThreads) {
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
