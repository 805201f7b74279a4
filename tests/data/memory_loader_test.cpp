// SPDX-License-Identifier: BSD-3-Clause
// Batches from memory, in the order of a sampler.
#include "lockstep/data/memory_loader.h"

#include <gmock/gmock.h>
#include <torch/cuda.h>
#include <torch/data/samplers/sequential.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MemoryLoader, GivesTheRowsInTheSamplersOrder) {
  const auto data = torch::arange(10 * 6, torch::kFloat).reshape({10, 2, 3});
  const auto target = torch::arange(10, torch::kLong);
  DistributedSampler sampler(10, 2, 1, {.seed = 3});
  MemoryLoader loader(data, target, sampler, {.batch_size = 2});
  for (const std::int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    std::vector<std::int64_t> sizes;
    std::vector<at::Tensor> datas;
    std::vector<at::Tensor> targets;
    for (auto& batch : loader) {
      sizes.push_back(batch.data.size(0));
      datas.push_back(batch.data);
      targets.push_back(batch.target);
    }
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, 2, 1}));
    std::vector<std::int64_t> order;
    for (const auto index : sampler.indices()) order.push_back(static_cast<std::int64_t>(index));
    const auto index = torch::tensor(order);
    EXPECT_TRUE(torch::cat(datas).equal(data.index_select(0, index))) << "epoch " << epoch;
    EXPECT_TRUE(torch::cat(targets).equal(index));
  }
}

TEST(MemoryLoader, KeepsBatchesThatTheCallerKeeps) {
  MemoryLoader loader(torch::arange(6, torch::kFloat).reshape({6, 1}),
                      torch::arange(6, torch::kLong), torch::data::samplers::SequentialSampler(6),
                      {.batch_size = 3});
  auto it = loader.begin();
  const at::Tensor kept = it->data;
  ++it;
  EXPECT_TRUE(kept.flatten().equal(torch::tensor({0.F, 1.F, 2.F})));
  EXPECT_TRUE(it->data.flatten().equal(torch::tensor({3.F, 4.F, 5.F})));
  ++it;
  EXPECT_TRUE(it == loader.end());
}

TEST(MemoryLoader, GivesTheValuesOfConjugatedAndNegatedData) {
  const auto data = torch::complex(torch::arange(6.F), torch::ones({6})).conj();
  const auto target = torch::_neg_view(torch::arange(6.F));
  MemoryLoader loader(data, target, torch::data::samplers::SequentialSampler(6), {.batch_size = 6});
  const auto batch = *loader.begin();
  EXPECT_TRUE(batch.data.equal(data.resolve_conj()));
  EXPECT_TRUE(batch.target.equal(-torch::arange(6.F)));
}

TEST(MemoryLoader, TakesStridedAndEmptyData) {
  const auto data = torch::arange(12, torch::kInt).reshape({3, 4}).t();
  MemoryLoader loader(data, torch::zeros({4}), torch::data::samplers::SequentialSampler(4),
                      {.batch_size = 9});
  EXPECT_TRUE(loader.begin()->data.equal(data));

  MemoryLoader empty(torch::empty({0, 4}), torch::empty({0}), DistributedSampler(0, 1, 0),
                     {.batch_size = 2});
  EXPECT_TRUE(empty.begin() == empty.end());
}

TEST(MemoryLoader, PutsBatchesOnTheGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  const auto data = torch::arange(40, torch::kFloat).reshape({10, 4});
  const auto device = at::Device(at::kCUDA, 0);
  for (const auto& source : {data, data.to(device)}) {
    MemoryLoader loader(source, torch::arange(10, torch::kLong), DistributedSampler(10, 1, 0),
                        {.batch_size = 4, .device = device});
    for (auto& batch : loader) {
      EXPECT_EQ(batch.data.device(), device);
      EXPECT_TRUE(batch.data.cpu().equal(data.index_select(0, batch.target.cpu())));
    }
  }
}

TEST(MemoryLoader, RefusesWhatCannotBe) {
  const auto rows = torch::zeros({4, 2});
  EXPECT_THAT([&] { MemoryLoader(rows, torch::zeros({3}), DistributedSampler(4, 1, 0), {}); },
              ThrowsMessage<UsageError>(HasSubstr("shape [4, 2] and target of shape [3]")));
  EXPECT_THAT(
      [&] {
        MemoryLoader(rows, torch::zeros({4}), DistributedSampler(4, 1, 0), {.batch_size = 0});
      },
      ThrowsMessage<UsageError>(HasSubstr("batch_size is 0")));
  MemoryLoader loader(rows, torch::zeros({4}), DistributedSampler(5, 1, 0, {.shuffle = false}),
                      {.batch_size = 5});
  EXPECT_THAT([&] { (void)loader.begin(); },
              ThrowsMessage<UsageError>(HasSubstr("asks for sample 4 of 4")));
}

}  // namespace
}  // namespace lockstep
