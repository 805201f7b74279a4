// SPDX-License-Identifier: BSD-3-Clause
// The update kernels against the same arithmetic written plainly: equal to the bit, for every type,
// option and range.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/optim/kernels/adam_kernel.h"
#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/optim/kernels/sgd_kernel.h"

namespace lockstep::optim {
namespace {

// Not a multiple of any vector's length.
constexpr std::int64_t kCount = 1003;

at::Tensor numbers(int seed, at::ScalarType type) {
  at::manual_seed(seed);
  return at::randn({kCount}).to(type);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

struct Tensors {
  explicit Tensors(at::ScalarType type)
      : parameter(numbers(1, type)),
        gradient(numbers(2, type)),
        first(numbers(3, state_type(type))),
        second(numbers(4, state_type(type)).abs()),
        most(numbers(5, state_type(type)).abs()) {}

  Tensors copy() const {
    Tensors other = *this;
    for (auto* tensor : {&other.parameter, &other.first, &other.second, &other.most}) {
      *tensor = tensor->clone();
    }
    return other;
  }

  at::Tensor parameter, gradient, first, second, most;
};

void expect_equal(const Tensors& a, const Tensors& b) {
  EXPECT_TRUE(same_bits(a.parameter, b.parameter));
  EXPECT_TRUE(same_bits(a.first, b.first));
  EXPECT_TRUE(same_bits(a.second, b.second));
  EXPECT_TRUE(same_bits(a.most, b.most));
}

const void* gradient_from(const Tensors& tensors, std::int64_t begin) {
  return static_cast<const std::byte*>(tensors.gradient.data_ptr()) +
         begin * tensors.gradient.element_size();
}

AdamMemory adam_memory(const Tensors& tensors, bool amsgrad, std::int64_t begin = 0) {
  return {.parameter = tensors.parameter.data_ptr(),
          .gradient = gradient_from(tensors, begin),
          .exp_avg = tensors.first.data_ptr(),
          .exp_avg_sq = tensors.second.data_ptr(),
          .max_exp_avg_sq = amsgrad ? tensors.most.data_ptr() : nullptr};
}

template <class Parameter>
void plain_adam(const Tensors& tensors, bool amsgrad, const AdamConstants& constants) {
  using Real = State<Parameter>;
  auto* const values = static_cast<Parameter*>(tensors.parameter.data_ptr());
  const auto* const gradient = static_cast<const Parameter*>(tensors.gradient.data_ptr());
  auto* const first = static_cast<Real*>(tensors.first.data_ptr());
  auto* const second = static_cast<Real*>(tensors.second.data_ptr());
  auto* const most = static_cast<Real*>(tensors.most.data_ptr());
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto value = static_cast<Real>(values[i]);
    auto slope = static_cast<Real>(gradient[i]);
    if (constants.l2 != 0) slope += static_cast<Real>(constants.l2) * value;
    first[i] = first[i] * static_cast<Real>(constants.beta1) +
               slope * static_cast<Real>(1 - constants.beta1);
    second[i] = second[i] * static_cast<Real>(constants.beta2) +
                slope * static_cast<Real>(1 - constants.beta2) * slope;
    if (amsgrad) most[i] = std::max(second[i], most[i]);
    const Real root = std::sqrt(amsgrad ? most[i] : second[i]);
    const Real denominator =
        root * static_cast<Real>(constants.root_scale) + static_cast<Real>(constants.eps);
    values[i] =
        static_cast<Parameter>(value * static_cast<Real>(constants.keep) -
                               static_cast<Real>(constants.step_size) * first[i] / denominator);
  }
}

SgdMemory sgd_memory(const Tensors& tensors, bool momentum, std::int64_t begin = 0) {
  return {.parameter = tensors.parameter.data_ptr(),
          .gradient = gradient_from(tensors, begin),
          .momentum_buffer = momentum ? tensors.first.data_ptr() : nullptr};
}

template <class Parameter>
void plain_sgd(const Tensors& tensors, bool momentum, const SgdConstants& constants) {
  using Real = State<Parameter>;
  auto* const values = static_cast<Parameter*>(tensors.parameter.data_ptr());
  const auto* const gradient = static_cast<const Parameter*>(tensors.gradient.data_ptr());
  auto* const buffer = static_cast<Real*>(tensors.first.data_ptr());
  const auto factor = static_cast<Real>(constants.momentum);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto value = static_cast<Real>(values[i]);
    auto slope = static_cast<Real>(gradient[i]);
    if (constants.l2 != 0) slope += static_cast<Real>(constants.l2) * value;
    if (momentum) {
      buffer[i] = buffer[i] * factor + slope * static_cast<Real>(constants.gradient_share);
      slope = constants.nesterov ? slope + factor * buffer[i] : buffer[i];
    }
    values[i] = static_cast<Parameter>(value - static_cast<Real>(constants.lr) * slope);
  }
}

class UpdateKernels : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(UpdateKernels, AdamHasTheBitsOfPlainArithmetic) {
  const at::ScalarType type = GetParam();
  for (const double l2 : {0.0, 0.01}) {
    for (const double keep : {1.0, 0.99}) {
      for (const bool amsgrad : {false, true}) {
        const AdamConstants constants{.beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .eps = 1e-8,
                                      .l2 = l2,
                                      .keep = keep,
                                      .step_size = 0.01,
                                      .root_scale = 1.5};
        const Tensors plain(type);
        const Tensors whole = plain.copy();
        const Tensors in_parts = plain.copy();
        with_element_of(type, [&]<class Parameter>(Parameter) {
          plain_adam<Parameter>(plain, amsgrad, constants);
        });
        update_adam(adam_memory(whole, amsgrad), 0, kCount, type, constants);
        for (const auto& [begin, end] :
             {std::pair{0, 1}, std::pair{1, 38}, std::pair{38, 38}, std::pair{38, 1003}}) {
          update_adam(adam_memory(in_parts, amsgrad, begin), begin, end, type, constants);
        }
        expect_equal(whole, plain);
        expect_equal(in_parts, plain);
      }
    }
  }
}

TEST_P(UpdateKernels, SgdHasTheBitsOfPlainArithmetic) {
  const at::ScalarType type = GetParam();
  for (const double l2 : {0.0, 0.01}) {
    for (const bool momentum : {false, true}) {
      for (const bool nesterov : {false, true}) {
        const SgdConstants constants{
            .lr = 0.1, .l2 = l2, .momentum = 0.9, .gradient_share = 0.7, .nesterov = nesterov};
        const Tensors plain(type);
        const Tensors whole = plain.copy();
        const Tensors in_parts = plain.copy();
        with_element_of(type, [&]<class Parameter>(Parameter) {
          plain_sgd<Parameter>(plain, momentum, constants);
        });
        update_sgd(sgd_memory(whole, momentum), 0, kCount, type, constants);
        update_sgd(sgd_memory(in_parts, momentum), 0, 500, type, constants);
        update_sgd(sgd_memory(in_parts, momentum, 500), 500, kCount, type, constants);
        expect_equal(whole, plain);
        expect_equal(in_parts, plain);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, UpdateKernels,
                         ::testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16),
                         [](const auto& test) { return c10::toString(test.param); });

TEST(AdamKernel, NanWinsTheLargestSecondMoment) {
  const Tensors tensors(at::kFloat);
  tensors.gradient[3] = NAN;
  tensors.most[5] = NAN;
  update_adam(adam_memory(tensors, true), 0, kCount, at::kFloat,
              {.beta1 = 0.9,
               .beta2 = 0.999,
               .eps = 1e-8,
               .l2 = 0,
               .keep = 1,
               .step_size = 0.01,
               .root_scale = 1});
  for (const int i : {3, 5}) {
    EXPECT_TRUE(std::isnan(tensors.most[i].item<float>())) << i;
    EXPECT_TRUE(std::isnan(tensors.parameter[i].item<float>())) << i;
  }
  EXPECT_EQ(tensors.parameter.isnan().sum().item<int>(), 2);
}

}  // namespace
}  // namespace lockstep::optim
