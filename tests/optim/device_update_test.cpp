// SPDX-License-Identifier: BSD-3-Clause
// The updates for other devices, beside the kernels for host memory. Without a GPU they run on the
// CPU, for which later libtorch versions have the same fused kernels as for GPUs.
#include "lockstep/optim/device_update.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/test_device.h"
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep::optim {
namespace {

using testing::test_device;

struct Case {
  Kernels kernels;
  at::ScalarType type;
};

class DeviceUpdate : public ::testing::TestWithParam<Case> {
 protected:
  at::Tensor drawn(std::int64_t count) const { return at::randn({count}).to(GetParam().type); }
  at::Tensor zeros(std::int64_t count) const {
    return at::zeros({count}, at::dtype(state_type(GetParam().type)));
  }
  // On the device, with memory of its own.
  static at::Tensor copy(const at::Tensor& tensor) { return tensor.clone().to(test_device()); }
  void expect_close(const at::Tensor& on_device, const at::Tensor& expected) const {
    const double tolerance = GetParam().type == at::kBFloat16 ? 1e-2 : 1e-5;
    const at::Tensor found = on_device.cpu();
    EXPECT_TRUE(at::allclose(found, expected, tolerance, tolerance)) << found << expected;
  }
};

// Whether this libtorch has the fused kernel for the CPU; any other error passes through.
template <class Function>
bool available(const Function& function) {
  try {
    function();
    return true;
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find("Could not run 'aten::_fused") == std::string::npos) throw;
    return false;
  }
}

const std::vector<std::int64_t> kCounts{1, 100, 1001};

TEST_P(DeviceUpdate, AdamIsThatOfHostMemory) {
  for (const bool amsgrad : {false, true}) {
    for (const bool decays_directly : {false, true}) {
      torch::manual_seed(1);
      AdamTensors tensors;
      AdamTensors expected;
      for (const std::int64_t count : kCounts) {
        expected.values.push_back(drawn(count));
        tensors.values.push_back(copy(expected.values.back()));
        expected.exp_avgs.push_back(zeros(count));
        tensors.exp_avgs.push_back(copy(expected.exp_avgs.back()));
        expected.exp_avg_sqs.push_back(zeros(count));
        tensors.exp_avg_sqs.push_back(copy(expected.exp_avg_sqs.back()));
        if (!amsgrad) continue;
        expected.max_exp_avg_sqs.push_back(zeros(count));
        tensors.max_exp_avg_sqs.push_back(copy(expected.max_exp_avg_sqs.back()));
      }
      for (std::int64_t number = 1; number <= 5; ++number) {
        const AdamStep step{
            .lr = 0.01, .weight_decay = 0.1, .decays_directly = decays_directly, .number = number};
        const auto times = static_cast<double>(number);
        const AdamConstants constants{.beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .eps = 1e-6,
                                      .l2 = decays_directly ? 0 : step.weight_decay,
                                      .keep = decays_directly ? 1 - step.lr * step.weight_decay : 1,
                                      .step_size = step.lr / (1 - std::pow(0.9, times)),
                                      .root_scale = 1 / std::sqrt(1 - std::pow(0.99, times)),
                                      .gradient_factor = number % 2 == 1 ? 1 : 0.125};
        tensors.gradients.clear();
        expected.gradients.clear();
        for (const std::int64_t count : kCounts) {
          expected.gradients.push_back(drawn(count));
          tensors.gradients.push_back(copy(expected.gradients.back()));
        }
        const auto update = [&] {
          update_adam_on_device(tensors, constants, step, GetParam().kernels);
        };
        if (!available(update)) GTEST_SKIP() << "this libtorch has no fused kernel for the device";
        for (std::size_t i = 0; i < kCounts.size(); ++i) {
          update_adam(
              {.parameter = expected.values[i].data_ptr(),
               .gradient = expected.gradients[i].data_ptr(),
               .exp_avg = expected.exp_avgs[i].data_ptr(),
               .exp_avg_sq = expected.exp_avg_sqs[i].data_ptr(),
               .max_exp_avg_sq = amsgrad ? expected.max_exp_avg_sqs[i].data_ptr() : nullptr},
              0, kCounts[i], GetParam().type, constants);
        }
      }
      for (std::size_t i = 0; i < kCounts.size(); ++i) {
        expect_close(tensors.values[i], expected.values[i]);
        expect_close(tensors.exp_avgs[i], expected.exp_avgs[i]);
        expect_close(tensors.exp_avg_sqs[i], expected.exp_avg_sqs[i]);
        if (amsgrad) expect_close(tensors.max_exp_avg_sqs[i], expected.max_exp_avg_sqs[i]);
      }
    }
  }
}

TEST_P(DeviceUpdate, SgdIsThatOfHostMemory) {
  for (const bool momentum : {false, true}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && !momentum) continue;
      torch::manual_seed(1);
      SgdTensors tensors;
      SgdTensors expected;
      for (const std::int64_t count : kCounts) {
        expected.values.push_back(drawn(count));
        tensors.values.push_back(copy(expected.values.back()));
        if (!momentum) continue;
        expected.momentum_buffers.push_back(zeros(count));
        tensors.momentum_buffers.push_back(copy(expected.momentum_buffers.back()));
      }
      for (int step = 0; step < 5; ++step) {
        const SgdConstants constants{.lr = 0.1,
                                     .l2 = 0.01,
                                     .momentum = 0.9,
                                     .gradient_share = step == 0 ? 1 : 0.7,
                                     .nesterov = nesterov,
                                     .gradient_factor = step % 2 == 0 ? 1 : 0.125};
        tensors.gradients.clear();
        expected.gradients.clear();
        for (const std::int64_t count : kCounts) {
          expected.gradients.push_back(drawn(count));
          tensors.gradients.push_back(copy(expected.gradients.back()));
        }
        const auto update = [&] { update_sgd_on_device(tensors, constants, GetParam().kernels); };
        if (!available(update)) GTEST_SKIP() << "this libtorch has no fused kernel for the device";
        for (std::size_t i = 0; i < kCounts.size(); ++i) {
          update_sgd(
              {.parameter = expected.values[i].data_ptr(),
               .gradient = expected.gradients[i].data_ptr(),
               .momentum_buffer = momentum ? expected.momentum_buffers[i].data_ptr() : nullptr},
              0, kCounts[i], GetParam().type, constants);
        }
      }
      for (std::size_t i = 0; i < kCounts.size(); ++i) {
        expect_close(tensors.values[i], expected.values[i]);
        if (momentum) expect_close(tensors.momentum_buffers[i], expected.momentum_buffers[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    By, DeviceUpdate,
    ::testing::Values(Case{Kernels::composed, at::kFloat}, Case{Kernels::composed, at::kDouble},
                      Case{Kernels::composed, at::kBFloat16}, Case{Kernels::fused, at::kFloat},
                      Case{Kernels::fused, at::kDouble}),
    [](const auto& test) {
      return std::string(test.param.kernels == Kernels::fused ? "Fused" : "Composed") +
             c10::toString(test.param.type);
    });

// Tensors without memory show that steps reach the device's updates, and count.
template <class Optimizer>
void take_steps_on_meta(Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  for (int step = 0; step < 2; ++step) {
    for (const at::Tensor& parameter : parameters) {
      if (step == 0 && parameter.is_same(parameters.back())) continue;
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    optimizer.step();
  }
}

std::vector<at::Tensor> parameters_on_meta() {
  const auto on_meta = at::TensorOptions().device(at::kMeta);
  return {at::empty({3, 4}, on_meta).set_requires_grad(true),
          at::empty({5}, on_meta.dtype(at::kDouble)).set_requires_grad(true),
          at::empty({7}, on_meta).set_requires_grad(true)};
}

TEST(DeviceSteps, AdamCountsThoseOfEachParameter) {
  const auto parameters = parameters_on_meta();
  Adam optimizer(parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
  take_steps_on_meta(optimizer, parameters);
  const auto steps_of = [&](const at::Tensor& parameter) {
    return find_state<torch::optim::AdamParamState>(optimizer, parameter)->step();
  };
  EXPECT_EQ(steps_of(parameters[0]), 2);
  EXPECT_EQ(steps_of(parameters[1]), 2);
  EXPECT_EQ(steps_of(parameters[2]), 1);
}

TEST(DeviceSteps, SgdHasAMomentumOfEachParameter) {
  const auto parameters = parameters_on_meta();
  SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.1));
  take_steps_on_meta(optimizer, parameters);
  for (const at::Tensor& parameter : parameters) {
    const auto* state = find_state<torch::optim::SGDParamState>(optimizer, parameter);
    EXPECT_EQ(state->momentum_buffer().sizes(), parameter.sizes());
    EXPECT_TRUE(state->momentum_buffer().is_meta());
  }
}

}  // namespace
}  // namespace lockstep::optim
