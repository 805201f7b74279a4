// SPDX-License-Identifier: BSD-3-Clause
// How a batch is cut for replicas.
#include "lockstep/parallel/scatter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> lengths(std::int64_t samples, int most_parts) {
  const auto scatter = plan_scatter({at::zeros({samples, 2})}, 0, most_parts);
  std::vector<std::int64_t> result;
  for (int part = 0; part < scatter->parts(); ++part) result.push_back(scatter->length(part));
  return result;
}

TEST(Scatter, CutsEvenlyOrWithOneMoreInTheFirst) {
  EXPECT_THAT(lengths(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(lengths(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(lengths(10, 4), ElementsAre(3, 3, 2, 2));
}

TEST(Scatter, HasNoMorePartsThanSamples) {
  EXPECT_THAT(lengths(3, 8), ElementsAre(1, 1, 1));
  EXPECT_THAT(lengths(1, 8), ElementsAre(1));
  EXPECT_THAT(lengths(0, 8), ElementsAre(0));
}

TEST(Scatter, PartsAreCopies) {
  const at::Tensor batch = at::arange(10, at::kFloat).reshape({2, 5}).set_requires_grad(true);
  const Scatter scatter(1, 5, 2);
  const at::Tensor second = scatter.part(batch, 1, at::kCPU);
  EXPECT_TRUE(at::equal(second, batch.narrow(1, 3, 2)));
  EXPECT_FALSE(second.requires_grad());
  EXPECT_FALSE(second.is_view());
  const auto version = batch._version();
  second.add_(1);
  EXPECT_EQ(batch._version(), version);
  EXPECT_EQ(batch[1][4].item<int>(), 9);
}

TEST(Scatter, GivesTensorsWithoutTheDimensionWhole) {
  const at::Tensor scale = at::ones({}, at::requires_grad());
  const Scatter scatter(0, 5, 2);
  const at::Tensor given = scatter.part(scale, 1, at::kCPU);
  EXPECT_EQ(given.dim(), 0);
  EXPECT_EQ(given.item<int>(), 1);
  EXPECT_FALSE(given.requires_grad());  // it starts a history of its own
  EXPECT_FALSE(scatter.part(at::Tensor(), 1, at::kCPU).defined());
}

TEST(Scatter, NeedsTheSameNumberOfSamplesEverywhere) {
  EXPECT_FALSE(plan_scatter({}, 0, 2).has_value());
  EXPECT_FALSE(plan_scatter({at::zeros({}), at::Tensor()}, 0, 2).has_value());
  EXPECT_TRUE(plan_scatter({at::zeros({}), at::zeros({4}), at::zeros({4, 2})}, 0, 2).has_value());
  try {
    plan_scatter({at::zeros({4}), at::zeros({5, 2})}, 0, 2);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 elements in one input and 5 in another"));
  }
}

}  // namespace
}  // namespace lockstep
