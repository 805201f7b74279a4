// SPDX-License-Identifier: BSD-3-Clause
// Gram-Schmidt orthogonalization: of any matrix, of columns that depend on each other, and of none.
#include <cmath>
#include <limits>

#include "tests/parallel/models.h"

#include "lockstep/hooks/low_rank_bucket.h"

namespace lockstep::testing {
namespace {

double distance_from_identity(const at::Tensor& columns) {
  const at::Tensor products = columns.t().matmul(columns).to(at::kDouble);
  return (products - torch::eye(columns.size(1), at::kDouble)).abs().max().item<double>();
}

TEST(Orthogonalize, MakesColumnsOrthonormalAndKeepsTheirSpan) {
  const at::Tensor original = values({50, 4});
  const at::Tensor result = original.clone();
  orthogonalize(result, 0);
  EXPECT_LT(distance_from_identity(result), 1e-6);
  EXPECT_TRUE(torch::allclose(result.matmul(result.t().matmul(original)), original, 1e-4, 1e-5));
}

TEST(Orthogonalize, AColumnThatIsAlmostDependentBecomesOrthonormal) {
  const at::Tensor first = values({50, 1});
  const at::Tensor result = at::cat({first, first * 3 + values({50, 1}, 2) * 1e-5F}, 1);
  orthogonalize(result, 0);
  EXPECT_LT(distance_from_identity(result), 1e-6);
}

// More columns than rows, or than rows that are not zero.
TEST(Orthogonalize, ADependentColumnBecomesZero) {
  const at::Tensor result = at::cat({values({3, 5}), at::zeros({4, 5})});
  orthogonalize(result, 0);
  EXPECT_LT(distance_from_identity(result.narrow(1, 0, 3)), 1e-6);
  EXPECT_TRUE(torch::equal(result.narrow(1, 3, 2), at::zeros({7, 2})));
}

TEST(Orthogonalize, AColumnOfZerosStaysSo) {
  const at::Tensor result = at::cat({at::zeros({5, 1}), values({5, 1}, 1)}, 1);
  orthogonalize(result, 0);
  EXPECT_TRUE(torch::equal(result.select(1, 0), at::zeros({5})));
  EXPECT_NEAR(result.select(1, 1).norm().item<double>(), 1, 1e-6);
}

TEST(Orthogonalize, InfinitiesAndNanShow) {
  for (const float odd : {std::numeric_limits<float>::infinity(), NAN}) {
    const at::Tensor result = at::cat({values({5, 2}), at::full({1, 2}, odd)});
    orthogonalize(result, 0);
    EXPECT_TRUE(result.select(1, 0).isnan().any().item<bool>());
    EXPECT_TRUE(result.select(1, 1).isnan().any().item<bool>());
  }
}

TEST(Orthogonalize, EpsilonIsAddedToTheNorm) {
  const at::Tensor result = at::tensor({3.F, 4.F}).view({2, 1});
  orthogonalize(result, 5);
  EXPECT_TRUE(torch::allclose(result, at::tensor({0.3F, 0.4F}).view({2, 1})));
}

}  // namespace
}  // namespace lockstep::testing
