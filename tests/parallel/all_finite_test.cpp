// SPDX-License-Identifier: BSD-3-Clause
// Elements that are not finite, in tensors of each type and layout, alone and beside others.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/test_device.h"
#include <gtest/gtest.h>

#include "lockstep/parallel/finite_gradients.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> tensors_of_each_kind() {
  const at::TensorOptions on_device(testing::test_device());
  std::vector<at::Tensor> tensors;
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    tensors.push_back(at::ones({5, 3}, on_device.dtype(type)));
  }
  tensors.push_back(at::ones({70'000}, on_device));
  tensors.push_back(at::ones({4, 6}, on_device).t());
  tensors.push_back(at::ones({8, 2}, on_device).select(1, 1));
  tensors.push_back(at::_neg_view(at::ones({3}, on_device)));
  tensors.push_back(at::ones({3}, at::kCPU));
  tensors.push_back(at::ones({}, on_device));
  tensors.push_back(at::ones({0}, on_device));
  return tensors;
}

TEST(AllFinite, FindsOneElementInAnyTensor) {
  const std::vector<at::Tensor> tensors = tensors_of_each_kind();
  EXPECT_TRUE(all_finite(tensors));
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor last = tensor.dim() == 0 ? tensor : tensor.select(0, -1);
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
      last.fill_(bad);
      EXPECT_FALSE(all_finite(tensors)) << tensor.toString() << tensor.sizes() << bad;
      EXPECT_FALSE(all_finite({tensor})) << tensor.toString() << tensor.sizes() << bad;
    }
    last.fill_(1);
    EXPECT_TRUE(all_finite(tensors)) << tensor.toString() << tensor.sizes();
  }
}

TEST(AllFinite, ChangesNoElement) {
  const at::Tensor tensor = at::randn({1001}, testing::test_device());
  const at::Tensor before = tensor.clone();
  EXPECT_TRUE(all_finite({tensor}));
  EXPECT_TRUE(at::equal(tensor, before));
}

TEST(AllFinite, HoldsForNoTensorAtAll) {
  EXPECT_TRUE(all_finite({}));
}

}  // namespace
}  // namespace lockstep
