// SPDX-License-Identifier: BSD-3-Clause
// The sampler against PyTorch's, and in torch::data's loaders.
#include "lockstep/data/distributed_sampler.h"

#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/data.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using Indices = std::vector<std::size_t>;

// What torch.utils.data.DistributedSampler of Python's torch 2.13 gave.
struct PythonCase {
  std::size_t size;
  int replicas, rank;
  bool shuffle;
  std::int64_t seed;
  bool drop_last;
  std::int64_t epoch;
  Indices expected;
};
const std::vector<PythonCase> kPythonCases{
    {10, 1, 0, true, 0, false, 0, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
    {10, 1, 0, true, 0, false, 1, {5, 6, 1, 2, 0, 8, 9, 3, 7, 4}},
    {10, 3, 0, true, 7, false, 0, {5, 4, 9, 2}},
    {10, 3, 1, true, 7, false, 0, {0, 1, 6, 5}},
    {10, 3, 2, true, 7, false, 0, {3, 7, 8, 0}},
    {10, 3, 2, true, 7, false, 5, {8, 6, 7, 5}},
    {10, 3, 2, true, 7, true, 5, {8, 6, 7}},
    {10, 4, 3, false, 0, false, 0, {3, 7, 1}},
    {10, 4, 3, false, 0, true, 0, {3, 7}},
    {2, 7, 0, true, 3, false, 2, {1}},
    {2, 7, 6, true, 3, false, 2, {1}},
    {2, 7, 6, true, 3, true, 2, {}},
    {1, 4, 3, true, 0, false, 9, {0}},
    {0, 2, 1, true, 0, false, 0, {}},
    {10, 2, 1, true, -5, false, 2, {9, 8, 4, 2, 0}},
    {10, 2, 0, true, 4294967296, false, 3, {6, 3, 8, 1, 2}},
};

TEST(DistributedSampler, EqualsPython) {
  for (const auto& c : kPythonCases) {
    DistributedSampler sampler(c.size, c.replicas, c.rank,
                               {.shuffle = c.shuffle, .seed = c.seed, .drop_last = c.drop_last});
    sampler.set_epoch(c.epoch);
    EXPECT_EQ(sampler.indices(), c.expected) << "size " << c.size << ", rank " << c.rank << " of "
                                             << c.replicas << ", epoch " << c.epoch;
    EXPECT_EQ(sampler.size(), c.expected.size());
  }
}

// How often each sample occurs over all ranks, counting the first `count` of each.
std::map<std::size_t, int> occurrences(std::size_t size, int replicas, bool drop_last,
                                       bool unpadded_only) {
  std::map<std::size_t, int> times;
  for (int rank = 0; rank < replicas; ++rank) {
    const DistributedSampler sampler(size, replicas, rank, {.seed = 11, .drop_last = drop_last});
    auto indices = sampler.indices();
    if (unpadded_only) indices.resize(sampler.unpadded_size());
    for (const auto index : indices) ++times[index];
  }
  return times;
}

TEST(DistributedSampler, RanksAreDisjointAndComplete) {
  EXPECT_THAT(occurrences(60, 4, false, false), AllOf(SizeIs(60), Each(Pair(::testing::_, 1))));
  EXPECT_THAT(occurrences(61, 4, true, false), AllOf(SizeIs(60), Each(Pair(::testing::_, 1))));
}

TEST(DistributedSampler, EvaluationCountsEverySampleOnce) {
  for (const std::size_t size : {0, 1, 2, 7, 61, 62, 63, 64}) {
    EXPECT_THAT(occurrences(size, 4, false, true),
                AllOf(SizeIs(size), Each(Pair(::testing::_, 1))));
  }
}

TEST(DistributedSampler, TakesRankAndSizeFromTheGroup) {
  testing::run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const Indices expected = DistributedSampler(10, 3, group->rank(), {.seed = 7}).indices();
    EXPECT_EQ(DistributedSampler(10, *group, {.seed = 7}).indices(), expected);
    EXPECT_EQ(DistributedSampler(10, group, {.seed = 7}).indices(), expected);
  });
}

TEST(DistributedSampler, GivesBatchesAndStartsOverOnReset) {
  DistributedSampler sampler(7, 1, 0, {.shuffle = false});
  EXPECT_EQ(sampler.next(3), Indices({0, 1, 2}));
  EXPECT_EQ(sampler.next(3), Indices({3, 4, 5}));
  EXPECT_EQ(sampler.next(3), Indices({6}));
  EXPECT_EQ(sampler.next(3), c10::nullopt);
  EXPECT_EQ(sampler.next(3), c10::nullopt);
  sampler.reset();
  EXPECT_EQ(sampler.next(9), Indices({0, 1, 2, 3, 4, 5, 6}));
  sampler.reset(2);
  EXPECT_EQ(sampler.next(9), Indices({0, 1}));
  EXPECT_EQ(sampler.size(), 2u);
}

TEST(DistributedSampler, SetEpochReachesCopiesAtTheirNextReset) {
  DistributedSampler sampler(50, 2, 1, {.seed = 1});
  DistributedSampler copy = sampler;
  const auto first = copy.next(3);
  sampler.set_epoch(4);
  EXPECT_EQ(copy.epoch(), 4);
  // The epoch under way goes on in its own order.
  auto whole = *first;
  const auto rest = copy.next(50);
  whole.insert(whole.end(), rest->begin(), rest->end());
  EXPECT_EQ(whole, DistributedSampler(50, 2, 1, {.seed = 1}).indices());
  copy.reset();
  EXPECT_EQ(copy.next(50), sampler.indices());
  EXPECT_NE(sampler.indices(), whole);
}

// Gives each index back as its data.
class Echo : public torch::data::datasets::Dataset<Echo> {
 public:
  explicit Echo(std::size_t size) : size_(size) {}
  torch::data::Example<> get(std::size_t index) override {
    return {torch::tensor(static_cast<std::int64_t>(index)), torch::zeros({})};
  }
  c10::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

TEST(DistributedSampler, TakesTheSizeFromADataSet) {
  testing::run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Echo numbers(7);
    const auto stacked = Echo(8).map(torch::data::transforms::Stack<>());
    const auto shared = torch::data::datasets::make_shared_dataset<Echo>(9);
    const torch::data::datasets::TensorDataset tensors(torch::zeros({11, 2}));
    EXPECT_EQ(DistributedSampler(numbers, group).size(), 4u);
    EXPECT_EQ(DistributedSampler(stacked, *group).size(), 4u);
    EXPECT_EQ(DistributedSampler(shared, group, {.drop_last = true}).size(), 4u);
    EXPECT_EQ(DistributedSampler(tensors, 2, group->rank()).size(), 6u);
  });
}

// A stream, which gives as many samples as are asked for and never ends.
class Endless : public torch::data::datasets::StreamDataset<Endless> {
 public:
  std::vector<torch::data::Example<>> get_batch(std::size_t size) override {
    return std::vector<torch::data::Example<>>(size);
  }
  c10::optional<std::size_t> size() const override { return c10::nullopt; }
};

TEST(DistributedSampler, RefusesADataSetWithoutASize) {
  EXPECT_THAT([] { DistributedSampler(Endless(), 2, 0); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("the data set has no size"),
                                              HasSubstr("with a ShardingFilter"))));
}

class LoaderWithWorkers : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LoaderWithWorkers, FollowsSetEpoch) {
  DistributedSampler sampler(103, 2, 1, {.seed = 5});
  auto loader = torch::data::make_data_loader(
      Echo(103).map(torch::data::transforms::Stack<>()), sampler,
      torch::data::DataLoaderOptions().batch_size(8).workers(GetParam()));
  std::set<Indices> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    Indices seen;
    for (auto& batch : *loader) {
      const auto* values = batch.data.data_ptr<std::int64_t>();
      seen.insert(seen.end(), values, values + batch.data.size(0));
    }
    EXPECT_EQ(seen, sampler.indices()) << "epoch " << epoch;
    orders.insert(seen);
  }
  EXPECT_EQ(orders.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Workers, LoaderWithWorkers, ::testing::Values(0, 2));

TEST(DistributedSampler, AnEmptySetEndsAtOnce) {
  DistributedSampler sampler(0, 3, 2);
  EXPECT_EQ(sampler.size(), 0u);
  EXPECT_EQ(sampler.unpadded_size(), 0u);
  EXPECT_THAT(sampler.indices(), IsEmpty());
  EXPECT_EQ(sampler.next(4), c10::nullopt);
}

TEST(DistributedSampler, ComesBackFromAnArchive) {
  DistributedSampler sampler(30, 2, 0, {.seed = 2});
  sampler.set_epoch(3);
  sampler.reset();
  (void)sampler.next(4);
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(stream);

  DistributedSampler resumed(30, 2, 0, {.seed = 2});
  torch::serialize::InputArchive in;
  in.load_from(stream);
  resumed.load(in);
  EXPECT_EQ(resumed.epoch(), 3);
  EXPECT_EQ(resumed.next(30), sampler.next(30));

  DistributedSampler smaller(4, 2, 0, {.seed = 2});
  EXPECT_THAT([&] { smaller.load(in); },
              ThrowsMessage<UsageError>(HasSubstr("saved position 4 lies outside")));
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  EXPECT_THAT([] { DistributedSampler(10, 2, 2); },
              ThrowsMessage<UsageError>(HasSubstr("rank 2 of 2 replicas")));
  EXPECT_THAT([] { DistributedSampler(10, 2, -1); },
              ThrowsMessage<UsageError>(HasSubstr("rank -1 of 2 replicas")));
  EXPECT_THAT([] { DistributedSampler(10, 0, 0); },
              ThrowsMessage<UsageError>(HasSubstr("rank 0 of 0 replicas")));
  DistributedSampler sampler(10, 2, 1);
  EXPECT_THAT([&] { (void)sampler.next(0); },
              ThrowsMessage<UsageError>(HasSubstr("rank 1 of 2: a batch of 0 samples")));
}

}  // namespace
}  // namespace lockstep
