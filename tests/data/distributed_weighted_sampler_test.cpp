// SPDX-License-Identifier: BSD-3-Clause
// Weighted draws against PyTorch's, dealt to ranks.
#include "lockstep/data/distributed_weighted_sampler.h"

#include <limits>
#include <set>
#include <sstream>

#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/data.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/data/linear_dataset.h"
#include "lockstep/data/memory_loader.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using Indices = std::vector<std::size_t>;

const at::Tensor& weights() {
  static const at::Tensor tensor = torch::tensor({0.1, 0.9, 0.0, 0.7, 3.0, 0.6}, torch::kDouble);
  return tensor;
}

// What torch.utils.data.WeightedRandomSampler of Python's torch 2.13 gave with
// generator=torch.Generator().manual_seed(sum).
struct PythonDraw {
  bool replacement;
  std::int64_t sum;
  Indices expected;
};
const std::vector<PythonDraw> kPythonDraws{
    {true, 0, {5, 4, 4, 5, 4, 4, 1, 4, 4, 3, 4, 1}},
    {true, 3, {1, 3, 4, 1, 4, 4, 3, 4, 4, 4, 1, 4}},
    {true, 42, {1, 1, 1, 1, 4, 4, 5, 5, 1, 1, 1, 4}},
    {true, -5, {4, 4, 4, 5, 3, 4, 4, 4, 1, 4, 1, 4}},
    {true, 4294967303, {3, 3, 4, 4, 5, 4, 3, 4, 4, 4, 1, 1}},
    {false, 4, {4, 5, 1, 3, 0}},
};

TEST(DistributedWeightedSampler, EqualsPython) {
  for (const auto& c : kPythonDraws) {
    DistributedWeightedSampler sampler(weights(), std::ssize(c.expected), 1, 0,
                                       {.replacement = c.replacement, .seed = c.sum - 3});
    sampler.set_epoch(3);
    EXPECT_EQ(sampler.indices(), c.expected) << "seed + epoch " << c.sum;
  }
}

// The draws of all ranks, in turn: rank 0's first, rank 1's first, and so on.
Indices dealt_in_turn(int ranks, const DistributedWeightedSamplerOptions& options) {
  std::vector<Indices> of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    const DistributedWeightedSampler sampler(weights(), 50, ranks, rank, options);
    of_rank.push_back(sampler.indices());
    EXPECT_EQ(of_rank.back().size(), sampler.size());
    EXPECT_EQ(of_rank.back().size(), of_rank.front().size());
  }
  Indices all;
  for (std::size_t i = 0; i < of_rank[0].size(); ++i) {
    for (const auto& own : of_rank) all.push_back(own[i]);
  }
  return all;
}

TEST(DistributedWeightedSampler, DrawsTheSameForAnyNumberOfRanks) {
  const Indices alone = DistributedWeightedSampler(weights(), 50, 1, 0, {.seed = 8}).indices();
  for (const int ranks : {1, 2, 3, 7}) {
    const Indices dropped = dealt_in_turn(ranks, {.seed = 8, .drop_last = true});
    EXPECT_THAT(dropped, SizeIs(50u / static_cast<unsigned>(ranks) * static_cast<unsigned>(ranks)));
    EXPECT_EQ(dropped, Indices(alone.begin(), alone.begin() + std::ssize(dropped)));

    Indices padded = dealt_in_turn(ranks, {.seed = 8});
    const Indices padding(padded.begin() + 50, padded.end());
    padded.resize(50);
    EXPECT_EQ(padded, alone);
    EXPECT_EQ(padding, Indices(alone.begin(), alone.begin() + std::ssize(padding)));
  }
}

TEST(DistributedWeightedSampler, TakesTheRankFromAGroup) {
  testing::run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const Indices expected =
        DistributedWeightedSampler(weights(), 10, 3, group->rank(), {.seed = 7}).indices();
    EXPECT_EQ(DistributedWeightedSampler(weights(), 10, group, {.seed = 7}).indices(), expected);
    EXPECT_EQ(DistributedWeightedSampler(weights(), 10, *group, {.seed = 7}).indices(), expected);
  });
}

TEST(DistributedWeightedSampler, KeepsItsOwnWeights) {
  const auto mine = torch::tensor({0, 1, 0}, torch::kLong);
  const DistributedWeightedSampler sampler(mine, 20, 1, 0);
  EXPECT_THAT(sampler.indices(), AllOf(SizeIs(20), Each(1u)));
  mine[2] = 1000;
  EXPECT_THAT(sampler.indices(), Each(1u));
}

TEST(DistributedWeightedSampler, FollowsSetEpochInLoaders) {
  const LinearDataset points({.size = 6});
  DistributedWeightedSampler sampler(weights(), 30, 2, 1);
  MemoryLoader from_memory(points.inputs(), torch::arange(6, torch::kLong), sampler,
                           {.batch_size = 4});
  auto from_torch = torch::data::make_data_loader(
      LinearDataset({.size = 6}).map(torch::data::transforms::Stack<>()), sampler, 4);
  std::set<Indices> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    const Indices expected = sampler.indices();
    orders.insert(expected);
    std::vector<at::Tensor> memory_rows;
    Indices memory_indices;
    for (auto& batch : from_memory) {
      memory_rows.push_back(batch.data);
      const auto* indices = batch.target.data_ptr<std::int64_t>();
      memory_indices.insert(memory_indices.end(), indices, indices + batch.target.size(0));
    }
    EXPECT_EQ(memory_indices, expected);
    std::vector<at::Tensor> torch_rows;
    for (auto& batch : *from_torch) torch_rows.push_back(batch.data);
    EXPECT_TRUE(torch::cat(torch_rows).equal(torch::cat(memory_rows)));
  }
  EXPECT_THAT(orders, SizeIs(3));
}

TEST(DistributedWeightedSampler, ComesBackFromAnArchive) {
  DistributedWeightedSampler sampler(weights(), 30, 2, 0, {.seed = 2});
  sampler.set_epoch(3);
  sampler.reset();
  (void)sampler.next(4);
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(stream);

  DistributedWeightedSampler resumed(weights(), 30, 2, 0, {.seed = 2});
  torch::serialize::InputArchive in;
  in.load_from(stream);
  resumed.load(in);
  EXPECT_EQ(resumed.epoch(), 3);
  EXPECT_EQ(resumed.next(30), sampler.next(30));
}

void expect_refused(const at::Tensor& bad, std::int64_t num_samples, const std::string& message,
                    bool replacement = true) {
  EXPECT_THAT(
      [&] { DistributedWeightedSampler(bad, num_samples, 3, 1, {.replacement = replacement}); },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("[DistributedWeightedSampler] rank 1 of 3: "), HasSubstr(message))));
}

TEST(DistributedWeightedSampler, RefusesBadWeights) {
  expect_refused(torch::tensor({1.0, -0.5}), 2, "weight 1 of 2 is -0.5;");
  expect_refused(torch::tensor({std::nan(""), 1.0}), 2, "weight 0 of 2 is nan;");
  expect_refused(torch::tensor({1.0, std::numeric_limits<double>::infinity()}), 2,
                 "weight 1 of 2 is inf;");
  expect_refused(torch::tensor({1.7e308, 1.7e308}, torch::kDouble), 2, "sum is infinite");
  expect_refused(torch::zeros({4}), 2, "all 4 weights are 0;");
  expect_refused(torch::ones({4, 2}), 2, "weights of shape [4, 2] and type Float;");
  expect_refused(torch::tensor(1.0), 2, "weights of shape []");
  expect_refused(torch::ones({0}), 2, "weights of shape [0]");
  expect_refused(torch::ones({2}, torch::kComplexDouble), 2, "type ComplexDouble");
  expect_refused(torch::ones({1}).expand({(1 << 24) + 1}), 2, "at most 16777216");
  expect_refused(at::Tensor(), 2, "weights are undefined");
  expect_refused(torch::ones({4}).to_sparse(), 2, "weights are sparse, quantized or");
  expect_refused(torch::quantize_per_tensor(torch::ones({4}), 1, 0, torch::kQInt8), 2,
                 "as to_dense() and dequantize() make it");
  expect_refused(torch::empty({4}, torch::kMeta), 2, "or on the device meta;");
}

TEST(DistributedWeightedSampler, RefusesWhatCannotBeDrawn) {
  expect_refused(weights(), 0, "num_samples is 0;");
  expect_refused(weights(), -3, "num_samples is -3;");
  expect_refused(weights(), 6, "6 samples were asked for without replacement, but 5 weights are",
                 /*replacement=*/false);
  EXPECT_THAT([] { DistributedWeightedSampler(weights(), 4, 2, 2); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("[DistributedWeightedSampler]"),
                                              HasSubstr("rank 2 of 2 replicas does not exist"))));
  DistributedWeightedSampler sampler(weights(), 30, 2, 0);
  EXPECT_THAT([&] { sampler.reset(7); },
              ThrowsMessage<UsageError>(HasSubstr("a data set of 7 samples, but 6 weights")));
  sampler.reset(6);
  EXPECT_EQ(sampler.size(), 15u);
}

}  // namespace
}  // namespace lockstep
