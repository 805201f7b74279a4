// SPDX-License-Identifier: BSD-3-Clause
// Sums of the replicas' gradients, to the bit.
#include "tests/parallel/models.h"
#include <gtest/gtest.h>

#include "lockstep/parallel/replica_node.h"

namespace lockstep::testing {
namespace {

using Terms = std::vector<at::Tensor>;

at::Tensor sum(Terms terms) {
  ReplicaWorkers workers;
  std::vector<Terms> sums;
  sums.push_back(std::move(terms));
  return sum_gradients(std::move(sums), workers, 3).front();
}

// Addition from left to right, one rounding at a time.
at::Tensor in_turn(const Terms& terms) {
  at::Tensor result = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) result = result + terms[i];
  return result;
}

Terms three(at::IntArrayRef sizes) {
  return {values(sizes), values(sizes, 1) * 1e5, values(sizes, 2) * -1e5};
}

TEST(GradientSum, OfNothingIsUndefinedAndOfOneIsThatOne) {
  EXPECT_FALSE(sum({}).defined());
  const at::Tensor only = values({4});
  EXPECT_EQ(sum({only}).data_ptr(), only.data_ptr());
}

TEST(GradientSum, HasTheBitsOfAdditionInTurn) {
  for (const std::int64_t elements : {1, 1000, 200'000}) {  // the last one in the workers
    EXPECT_TRUE(torch::equal(sum(three({elements})), in_turn(three({elements}))));
  }
}

TEST(GradientSum, OfManyTensorsAtOnce) {
  ReplicaWorkers workers;
  std::vector<Terms> sums;
  for (int i = 0; i < 40; ++i) {
    sums.push_back(i % 5 == 4 ? Terms{} : three({i * 100 + 1, 7}));  // 0, 1 or several parts each
  }
  const auto results = sum_gradients(std::move(sums), workers, 4);
  for (int i = 0; i < 40; ++i) {
    const at::Tensor& result = results[static_cast<std::size_t>(i)];
    if (i % 5 == 4) {
      EXPECT_FALSE(result.defined());
    } else {
      EXPECT_TRUE(torch::equal(result, in_turn(three({i * 100 + 1, 7})))) << i;
    }
  }
}

TEST(GradientSum, TakesWhatLiesDifferentlyInMemory) {
  const Terms terms{values({3, 5}), values({5, 3}, 1).t(), values({1}, 2).expand({3, 5})};
  EXPECT_TRUE(torch::equal(sum(terms), in_turn(terms)));
  const Terms reversed(terms.rbegin(), terms.rend());
  EXPECT_TRUE(torch::equal(sum(reversed), in_turn(reversed)));
  EXPECT_EQ(sum({terms[1], terms[1]}).strides(), terms[1].strides());
}

TEST(GradientSum, LeavesWhatOthersSeeAlone) {
  const at::Tensor seen = values({5});
  const at::Tensor before = seen.clone();
  sum({seen, values({5}, 1)});
  EXPECT_TRUE(torch::equal(seen, before));
  const at::Tensor base = values({2, 5});
  sum({base[0], values({5}, 1)});
  EXPECT_TRUE(torch::equal(base, values({2, 5})));
}

TEST(GradientSum, KnowsTypesAndLayoutsThatTheKernelsDoNot) {
  const auto complex = [](double salt) { return torch::complex(values({4}, salt), values({4})); };
  EXPECT_TRUE(torch::equal(sum({complex(1), complex(2)}), complex(1) + complex(2)));
  EXPECT_TRUE(torch::equal(sum({complex(1), complex(2).conj()}), complex(1) + complex(2).conj()));
  const at::Tensor negated = torch::_neg_view(values({4}));
  EXPECT_TRUE(torch::equal(sum({values({4}, 1), negated}), values({4}, 1) - values({4})));
  const at::Tensor dense = values({4, 2});
  EXPECT_TRUE(torch::equal(sum({dense.to_sparse(1), dense.to_sparse(1)}).to_dense(), dense * 2));
  // Half types are rounded once.
  const auto one = torch::full({1}, 1, at::kBFloat16);
  const auto little = torch::full({1}, 1. / 256, at::kBFloat16);
  EXPECT_EQ(sum({one, little, little}).item<float>(), 1 + 1. / 128);
}

}  // namespace
}  // namespace lockstep::testing
