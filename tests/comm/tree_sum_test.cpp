// SPDX-License-Identifier: BSD-3-Clause
// The tree, and sums over it in one process. The conformance suite covers sums over ranks.
#include "lockstep/comm/tree_sum.h"

#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SumTree, CutsARunIntoItsLargestSubtrees) {
  EXPECT_THAT(SumTree(8).subtrees({0, 8}), ElementsAre(LeafRange{0, 8}));
  EXPECT_THAT(SumTree(8).subtrees({0, 4}), ElementsAre(LeafRange{0, 4}));
  EXPECT_THAT(SumTree(8).subtrees({1, 7}),
              ElementsAre(LeafRange{1, 2}, LeafRange{2, 4}, LeafRange{4, 6}, LeafRange{6, 7}));
  // The last node of a level may have fewer leaves.
  EXPECT_THAT(SumTree(6).subtrees({4, 6}), ElementsAre(LeafRange{4, 6}));
  EXPECT_THAT(SumTree(6).subtrees({3, 6}), ElementsAre(LeafRange{3, 4}, LeafRange{4, 6}));
  EXPECT_THAT(SumTree(5).subtrees({0, 5}), ElementsAre(LeafRange{0, 5}));
  EXPECT_THAT(SumTree(1).subtrees({0, 1}), ElementsAre(LeafRange{0, 1}));
}

TEST(SumTree, DividesLeavesEvenly) {
  EXPECT_THAT(even_runs(6, 4),
              ElementsAre(LeafRange{0, 1}, LeafRange{1, 3}, LeafRange{3, 4}, LeafRange{4, 6}));
  EXPECT_THAT(
      [] { even_runs(2, 3); },
      ThrowsMessage<UsageError>("even_runs: 2 microbatches cannot be divided among 3 ranks; "
                                "give at least one for each rank"));
  EXPECT_THROW(SumTree(0), UsageError);
}

at::Tensor leaf_of(std::int64_t leaf) {
  const at::Tensor numbers = at::arange(100, at::kDouble) + 17.0 * static_cast<double>(leaf);
  return numbers.sin().mul(1000).to(at::kFloat);
}

std::vector<at::Tensor> partials_of(const SumTree& tree, LeafRange run) {
  TreeSum sum(tree, 100, at::kFloat);
  sum.begin(run);
  for (std::int64_t leaf = run.begin; leaf < run.end; ++leaf) {
    sum.add([&](const at::Tensor& to, bool adds) {
      adds ? to.add_(leaf_of(leaf)) : to.copy_(leaf_of(leaf));
    });
  }
  return sum.partials();
}

TEST(TreeSum, RefusesRunsAndPartialSumsThatDoNotFit) {
  const SumTree tree(6);
  const auto sum = [&](const std::vector<at::Tensor>& partials,
                       const std::vector<LeafRange>& runs) {
    return [=] { sum_of_runs({partials}, tree, runs); };
  };
  EXPECT_THAT(sum(partials_of(tree, {0, 5}), {{0, 5}}),
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("sum_of_runs: 1 run that is not 6 consecutive leaves"),
                        HasSubstr("take them from even_runs()"))));
  EXPECT_THAT(sum(partials_of(tree, {0, 3}), {{0, 6}}),
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("sum_of_runs: the number of partial sums is 2 instead of 1"),
                        HasSubstr("take them from TreeSum::partials()"))));
}

// By hand, so that the shape of the tree is part of the contract.
TEST(TreeSum, AddsPairsOfTheTree) {
  const at::Tensor of_four = (leaf_of(0) + leaf_of(1)) + (leaf_of(2) + leaf_of(3));
  const at::Tensor expected = (of_four + (leaf_of(4) + leaf_of(5))) * 0.1F;
  const SumTree tree(6);
  EXPECT_TRUE(
      at::equal(sum_of_runs({partials_of(tree, {0, 6})}, tree, even_runs(6, 1), 0.1), expected));
  EXPECT_FALSE(at::equal(expected,
                         [] {
                           at::Tensor sum = leaf_of(0);
                           for (int leaf = 1; leaf < 6; ++leaf) sum = sum + leaf_of(leaf);
                           return sum * 0.1F;
                         }()))
      << "the leaves do not tell one order from another";
}

TEST(TreeSum, DoesNotDependOnTheRuns) {
  for (const std::int64_t leaves : {1, 2, 3, 5, 6, 7, 8, 13}) {
    const SumTree tree(leaves);
    const at::Tensor whole = sum_of_runs({partials_of(tree, {0, leaves})}, tree,
                                         even_runs(leaves, 1), 1.0 / static_cast<double>(leaves));
    for (int parts = 2; parts <= leaves; ++parts) {
      const auto runs = even_runs(leaves, parts);
      std::vector<std::vector<at::Tensor>> partials;
      for (const LeafRange& run : runs) partials.push_back(partials_of(tree, run));
      EXPECT_TRUE(
          at::equal(sum_of_runs(partials, tree, runs, 1.0 / static_cast<double>(leaves)), whole))
          << leaves << " leaves in " << parts << " runs";
    }
  }
}

}  // namespace
}  // namespace lockstep
