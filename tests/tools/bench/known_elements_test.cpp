// SPDX-License-Identifier: BSD-3-Clause
// Elements whose reductions are known, and the count of wrong ones.
#include "tools/bench/known_elements.h"

#include <limits>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::bench {
namespace {

double position(std::int64_t i) {
  return static_cast<double>(i);
}

TEST(KnownElements, DifferBetweenRanksNeighboursAndRounds) {
  for (const auto op : {ReduceOp::sum, ReduceOp::product}) {
    EXPECT_NE(known_element({op}, 0, 5, 0), known_element({op}, 1, 5, 0));
    EXPECT_NE(known_element({op}, 0, 5, 0), known_element({op}, 0, 6, 0));
    EXPECT_NE(known_element({op}, 0, 5, 0), known_element({op}, 0, 5, 1));
  }
}

TEST(KnownElements, AreReduced) {
  // Ranks 0, 1 and 2 hold 4, 5 and 6 at position 3.
  EXPECT_EQ(known_reduction({ReduceOp::sum}, 3, 3, 0), 15);
  EXPECT_EQ(known_reduction({ReduceOp::mean}, 3, 3, 0), 5);
  EXPECT_EQ(known_reduction({ReduceOp::min}, 3, 3, 0), 4);
  EXPECT_EQ(known_reduction({ReduceOp::max}, 3, 3, 0), 6);
  // And 2, 1 and 2 for products.
  EXPECT_EQ(known_reduction({ReduceOp::product}, 3, 3, 0), 4);
}

TEST(KnownElements, OfBoolsAreReduced) {
  // Ranks 0 and 1 hold 0 and 0 at position 0, 1 and 0 at 1, 1 and 1 at 2.
  const std::vector<std::pair<ReduceOp, std::vector<bool>>> expected = {
      {ReduceOp::sum, {false, true, true}},
      {ReduceOp::max, {false, true, true}},
      {ReduceOp::product, {false, false, true}},
      {ReduceOp::min, {false, false, true}}};
  for (const auto& [op, values] : expected) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(known_reduction({op, torch::kBool}, 2, i, 0) != 0, values[i]) << name(op) << i;
    }
  }
}

TEST(KnownElements, OfBoolsAreReducedToBothValuesWhateverTheNumberOfRanks) {
  for (const auto op : {ReduceOp::sum, ReduceOp::product}) {
    for (const int ranks : {2, 7, 20}) {
      int set = 0;
      for (int i = 0; i < 7; ++i) set += known_reduction({op, torch::kBool}, ranks, i, 0) != 0;
      EXPECT_GT(set, 0) << name(op) << ranks;
      EXPECT_LT(set, 7) << name(op) << ranks;
    }
  }
}

TEST(CountWrong, FindsEachElementThatIsNotAsItShouldBe) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                          torch::kInt, torch::kLong, torch::kByte}) {
    const auto tensor = torch::empty({100}, type);
    fill(tensor, position);
    EXPECT_EQ(count_wrong(tensor, position, 0), 0) << type;
    tensor[3] += 1;
    tensor[99] = 0;
    EXPECT_EQ(count_wrong(tensor, position, 0), 2) << type;
  }
}

TEST(CountWrong, FindsEachBoolThatIsNotAsItShouldBe) {
  const auto tensor = torch::empty({100}, torch::kBool);
  const auto odd = [](std::int64_t i) { return static_cast<double>(i % 2); };
  fill(tensor, odd);
  EXPECT_EQ(count_wrong(tensor, odd, 0), 0);
  tensor[3] = false;
  tensor[98] = true;
  EXPECT_EQ(count_wrong(tensor, odd, 0), 2);
}

TEST(CountWrong, KnowsWhatLeavesTheRangeOfAType) {
  constexpr int kRanks = 40;
  const auto sum = [](std::int64_t i) { return known_reduction({ReduceOp::sum}, kRanks, i, 0); };
  ASSERT_GT(sum(0), 255);
  auto tensor = torch::zeros({100}, torch::kByte);
  for (int rank = 0; rank < kRanks; ++rank) {
    auto part = torch::empty_like(tensor);
    fill(part, [&](std::int64_t i) { return known_element({ReduceOp::sum}, rank, i, 0); });
    tensor += part;
  }
  EXPECT_EQ(count_wrong(tensor, sum, 0), 0);

  const auto product = [](std::int64_t) { return 0x1p130; };
  EXPECT_EQ(count_wrong(torch::zeros({5}, torch::kLong), product, 0), 0);
  for (const auto type : {torch::kHalf, torch::kFloat, torch::kBFloat16}) {
    auto infinite = torch::full({5}, std::numeric_limits<double>::infinity(), type);
    EXPECT_EQ(count_wrong(infinite, product, 0), 0) << type;
    infinite[3] = 1;
    EXPECT_EQ(count_wrong(infinite, product, 0), 1) << type;
  }
}

TEST(CountWrong, AllowsRoundingsButNotNan) {
  const auto tensor = torch::full({1}, 1 + 2 * std::numeric_limits<float>::epsilon());
  const auto one = [](std::int64_t) { return 1.0; };
  EXPECT_EQ(count_wrong(tensor, one, 2), 0);
  EXPECT_EQ(count_wrong(tensor, one, 1), 1);
  tensor[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_wrong(tensor, one, 1000), 1);
}

}  // namespace
}  // namespace lockstep::bench
