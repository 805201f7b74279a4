// SPDX-License-Identifier: BSD-3-Clause
// The order of an epoch against values that Python's torch 2.13 gave.
#include "lockstep/data/sample_order.h"

#include <numeric>

#include <gmock/gmock.h>

#include "lockstep/data/epoch_sampler.h"

namespace lockstep {
namespace {

// torch.randperm(60000, generator=torch.Generator().manual_seed(42 + epoch)), folded into one
// number: h = h * 1000003 + value mod 2^64.
std::uint64_t fold(const std::vector<std::size_t>& order) {
  std::uint64_t hash = 0;
  for (const auto value : order) hash = hash * 1000003 + value;
  return hash;
}

TEST(SampleOrder, EqualsPythonOnALargeSet) {
  EXPECT_EQ(fold(sample_order(60000, true, 42, 0)), 0x9b20fe3f13198380u);
  EXPECT_EQ(fold(sample_order(60000, true, 42, 1)), 0xfb92bd3313ed6a8u);
}

TEST(SampleOrder, DependsOnSeedPlusEpochAlone) {
  EXPECT_EQ(sample_order(100, true, 3, 4), sample_order(100, true, 7, 0));
  EXPECT_NE(sample_order(100, true, 3, 4), sample_order(100, true, 3, 5));
}

TEST(SampleOrder, CountsUpWithoutShuffle) {
  EXPECT_THAT(sample_order(4, false, 9, 9), ::testing::ElementsAre(0, 1, 2, 3));
}

TEST(RankShare, UnpaddedCountsAddUpToTheSize) {
  for (const bool drop_last : {false, true}) {
    for (std::size_t size = 0; size < 20; ++size) {
      for (int ranks = 1; ranks < 9; ++ranks) {
        std::size_t sum = 0;
        std::size_t all = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const RankShare share{size, ranks, rank, drop_last};
          EXPECT_LE(share.unpadded_count(), share.count());
          sum += share.unpadded_count();
          all += share.count();
        }
        EXPECT_EQ(sum, drop_last ? all : size) << size << " samples, " << ranks << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
