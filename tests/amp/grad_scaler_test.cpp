// SPDX-License-Identifier: BSD-3-Clause
// The scale and the skipped steps are equal to PyTorch's, and the same on every rank.
#include "lockstep/amp/grad_scaler.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/test_device.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;
using testing::test_device;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;
using Parameters = std::vector<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class Optimizer>
OptimizerPointer make_sgd(const Parameters& parameters) {
  return std::make_unique<Optimizer>(parameters, torch::optim::SGDOptions(1));
}

const auto libtorchs_sgd = make_sgd<torch::optim::SGD>;
const auto fused_sgd = make_sgd<optim::SGD>;

at::Tensor parameter(at::ScalarType type = at::kFloat) {
  return at::zeros({1}, at::TensorOptions(test_device()).dtype(type)).set_requires_grad(true);
}

void set_gradient(const at::Tensor& parameter, double value) {
  parameter.mutable_grad() = at::full({1}, value, parameter.options());
}

class GradScaling : public ::testing::TestWithParam<OptimizerPointer (*)(const Parameters&)> {
 protected:
  at::Tensor weight = parameter();
  OptimizerPointer optimizer = GetParam()({weight});
  GradScaler scaler;
};

// Printed by tests/amp/record_grad_scaler.py with PyTorch 2.13.0: its torch.amp.GradScaler("cpu",
// growth_factor=2.1, backoff_factor=0.37, growth_interval=7) with the gradients below, unscale_
// before every third step, and update(2**14) after step 500.
const std::vector<std::int64_t> kPythonSkips{
    0,   15,  22,  34,  37,  59,  74,  77,  89,  108, 126, 133, 148, 163, 178, 185, 207,
    215, 219, 237, 244, 259, 274, 289, 296, 311, 318, 333, 348, 355, 377, 385, 404, 407,
    422, 429, 444, 459, 466, 488, 496, 503, 518, 533, 548, 555, 577, 585, 589, 607, 614,
    629, 644, 659, 666, 681, 688, 703, 718, 725, 747, 755, 774, 777, 792, 799, 814, 829,
    836, 858, 866, 885, 888, 903, 918, 925, 947, 955, 959, 977, 984, 999};
// After every 50 steps.
const std::vector<double> kPythonScales{
    8838.2392578125,  14206.5419921875, 10874.0595703125, 47240.30078125,  6370.865234375,
    10240.4990234375, 16460.529296875,  71509.6640625,    9643.8515625,    15501.4794921875,
    26335.564453125,  20157.935546875,  15429.4130859375, 11810.078125,    18983.462890625,
    5376.263671875,   11121.9814453125, 17877.416015625,  28736.076171875, 8138.279296875};

TEST_P(GradScaling, EqualsPythonFor1000Steps) {
  scaler = GradScaler({.growth_factor = 2.1, .backoff_factor = 0.37, .growth_interval = 7});
  std::vector<std::int64_t> skips;
  std::vector<double> scales;
  for (std::int64_t k = 0; k < 1000; ++k) {
    weight.data().zero_();
    const double slope = std::exp2(-(k * k * 31 % 37 % 19)) * static_cast<double>(1 + k % 10);
    // float16 overflows above 65504.
    set_gradient(weight, (at::full({}, scaler.get_scale(), at::kFloat) * static_cast<float>(slope))
                             .to(at::kHalf)
                             .item<double>());
    if (k % 3 == 0) scaler.unscale_(*optimizer);
    const bool stepped = scaler.step(*optimizer);
    EXPECT_EQ(weight.item<double>() != 0, stepped) << k;
    if (!stepped) skips.push_back(k);
    k == 500 ? scaler.update(16384) : scaler.update();
    if (k % 50 == 49) scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(skips, kPythonSkips);
  EXPECT_EQ(scales, kPythonScales);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

TEST_P(GradScaling, StepsWithUnscaledGradients) {
  scaler.scale(weight.sum() * 3).backward();
  EXPECT_EQ(weight.grad().item<double>(), 3 * 65536.0);
  EXPECT_TRUE(scaler.step(*optimizer));
  EXPECT_EQ(weight.item<double>(), -3);
}

TEST_P(GradScaling, GradientsCanBeUnscaledFirst) {
  scaler.scale(weight.sum() * 3).backward();
  scaler.unscale_(*optimizer);
  EXPECT_EQ(weight.grad().item<double>(), 3);
  weight.mutable_grad().clamp_(-1, 1);
  EXPECT_TRUE(scaler.step(*optimizer));
  EXPECT_EQ(weight.item<double>(), -1);
}

TEST_P(GradScaling, SkipsEachKindOfOverflow) {
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    set_gradient(weight, bad);
    const double before = scaler.get_scale();
    EXPECT_FALSE(scaler.step(*optimizer));
    scaler.update();
    EXPECT_EQ(weight.item<double>(), 0);
    EXPECT_EQ(scaler.get_scale(), before / 2);
  }
}

TEST_P(GradScaling, OneOptimizersOverflowLowersTheScaleForAll) {
  const at::Tensor other = parameter();
  const OptimizerPointer other_optimizer = GetParam()({other});
  set_gradient(weight, kInfinity);
  set_gradient(other, 65536);
  EXPECT_FALSE(scaler.step(*optimizer));
  EXPECT_TRUE(scaler.step(*other_optimizer));
  scaler.update();
  EXPECT_EQ(other.item<double>(), -1);
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST_P(GradScaling, GoesOnFromItsState) {
  scaler = GradScaler({.growth_interval = 2});
  set_gradient(weight, 0);
  scaler.step(*optimizer);
  scaler.update();
  GradScaler restored;
  restored.load_state(scaler.state());
  restored.step(*optimizer);
  restored.update();
  EXPECT_EQ(restored.get_scale(), 2 * 65536);
}

TEST_P(GradScaling, DoesNothingIfItIsNotEnabled) {
  scaler = GradScaler({.enabled = false});
  const at::Tensor loss = weight.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  set_gradient(weight, 2);
  scaler.unscale_(*optimizer);
  EXPECT_TRUE(scaler.step(*optimizer));
  scaler.update();
  EXPECT_EQ(weight.item<double>(), -2);
  EXPECT_EQ(scaler.get_scale(), 1);
}

TEST_P(GradScaling, RefusesCallsInAnotherOrder) {
  const auto message = [](const auto& function) { return message_of<UsageError>(function); };
  EXPECT_THAT(message([&] { scaler.update(); }), HasSubstr("needs a step() or an unscale_()"));
  EXPECT_THAT(message([&] { scaler.step(*optimizer); }),
              HasSubstr("no parameter of the optimizer"));
  set_gradient(weight, 1);
  scaler.unscale_(*optimizer);
  EXPECT_THAT(message([&] { scaler.unscale_(*optimizer); }), HasSubstr("after unscale_()"));
  scaler.step(*optimizer);
  EXPECT_THAT(message([&] { scaler.unscale_(*optimizer); }), HasSubstr("after step()"));
  EXPECT_THAT(message([&] { scaler.step(*optimizer); }), HasSubstr("twice for one optimizer"));
  EXPECT_THAT(message([&] { scaler.update(kInfinity); }), HasSubstr("the scale inf is not"));
  scaler.update();
  EXPECT_TRUE(scaler.step(*optimizer));
}

// One of ours whose step fails once.
class FailsOnce final : public optim::SGD {
 public:
  using optim::SGD::SGD;
  void step_unscaling(double factor) override {
    if (!std::exchange(failed_, true)) throw std::runtime_error("out of memory");
    optim::SGD::step_unscaling(factor);
  }

 private:
  bool failed_ = false;
};

TEST(GradScaler, AStepThatFailedIsTakenAnewWithUnscaledGradients) {
  const at::Tensor weight = parameter();
  FailsOnce optimizer({weight}, torch::optim::SGDOptions(1));
  GradScaler scaler;
  set_gradient(weight, 3 * 65536);
  EXPECT_THROW(scaler.step(optimizer), std::runtime_error);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(weight.item<double>(), -3);
}

TEST_P(GradScaling, GoesOnAfterAnAbandonedStep) {
  set_gradient(weight, 65536);
  scaler.unscale_(*optimizer);
  scaler.abandon_step();
  set_gradient(weight, 3 * 65536);
  EXPECT_TRUE(scaler.step(*optimizer));
  EXPECT_EQ(weight.item<double>(), -3);
}

TEST_P(GradScaling, ExplicitUnscalingRefusesFloat16) {
  const at::Tensor half = parameter(at::kHalf);
  const OptimizerPointer of_half = GetParam()({half});
  set_gradient(half, 1);
  EXPECT_THAT(message_of<UsageError>([&] { scaler.unscale_(*of_half); }),
              HasSubstr("gradients of type float16 cannot be unscaled"));
}

INSTANTIATE_TEST_SUITE_P(, GradScaling, ::testing::Values(libtorchs_sgd, fused_sgd),
                         [](const auto& info) { return info.index == 0 ? "libtorch" : "fused"; });

TEST(GradScaler, ScalesALossThatFloat16CouldNotHold) {
  const GradScaler scaler;
  const at::Tensor scaled = scaler.scale(at::full({}, 2, at::kHalf));
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<double>(), 2 * 65536);
}

TEST_P(GradScaling, UnscalesAndStepsTiedWeightsOnce) {
  const at::Tensor tied = parameter();
  const at::Tensor other = parameter();
  const OptimizerPointer of_both = GetParam()({tied, other, tied});
  for (const bool unscaled_before : {true, false}) {
    set_gradient(tied, 65536);
    set_gradient(other, 65536);
    if (unscaled_before) {
      scaler.unscale_(*of_both);
      EXPECT_EQ(tied.grad().item<float>(), 1);
    }
    const double before = tied.item<double>();
    EXPECT_TRUE(scaler.step(*of_both));
    EXPECT_EQ(tied.item<double>(), before - 1);
    scaler.update();
  }
}

TEST(GradScaler, NeverGrowsToInfinity) {
  GradScaler scaler({.init_scale = 3e38, .growth_interval = 1});
  const at::Tensor weight = parameter();
  optim::SGD optimizer({weight}, torch::optim::SGDOptions(1));
  set_gradient(weight, 0);
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 3e38F);
}

TEST(GradScaler, NeverFallsToAScaleWithoutAnInverse) {
  GradScaler scaler;
  const at::Tensor weight = parameter();
  optim::SGD optimizer({weight}, torch::optim::SGDOptions(1));
  for (int step = 0; step < 200; ++step) {
    set_gradient(weight, kInfinity);
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
  }
  EXPECT_GT(scaler.get_scale(), 0);
  GradScaler loaded;
  loaded.load_state(scaler.state());
  EXPECT_EQ(loaded.get_scale(), scaler.get_scale());
  set_gradient(weight, scaler.get_scale());
  EXPECT_TRUE(loaded.step(optimizer));
  EXPECT_EQ(weight.item<double>(), -1);
}

TEST(GradScaler, RefusesImpossibleOptions) {
  const auto message = [](const GradScalerOptions& options) {
    return message_of<UsageError>([&] { const GradScaler scaler(options); });
  };
  EXPECT_THAT(message({.init_scale = 0}), HasSubstr("the scale 0 is not"));
  EXPECT_THAT(message({.init_scale = 1e39}), HasSubstr("the scale 1e+39 is not"));
  EXPECT_THAT(message({.growth_factor = 1}), HasSubstr("growth_factor is 1"));
  EXPECT_THAT(message({.backoff_factor = 1}), HasSubstr("backoff_factor is 1"));
  EXPECT_THAT(message({.growth_interval = 0}), HasSubstr("growth_interval is 0"));
  GradScaler scaler;
  GradScalerState state = scaler.state();
  state.growth_tracker = 2000;
  EXPECT_THAT(message_of<UsageError>([&] { scaler.load_state(state); }),
              HasSubstr("growth_tracker is 2000"));
}

// In the order of the kernels' arithmetic: each type, with and without momentum.
TEST(GradScaler, UnscalingWithinTheStepChangesNoBit) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    torch::manual_seed(1);
    const at::Tensor one = at::randn({1001}).to(type).set_requires_grad(true);
    const at::Tensor other = one.detach().clone().set_requires_grad(true);
    optim::Adam unscaled({one}, torch::optim::AdamOptions(0.01).weight_decay(0.1));
    optim::Adam scaled({other}, torch::optim::AdamOptions(0.01).weight_decay(0.1));
    GradScaler scaler;
    for (int step = 0; step < 3; ++step) {
      one.mutable_grad() = at::randn({1001}).to(type);
      other.mutable_grad() = one.grad() * 65536;
      unscaled.step();
      EXPECT_TRUE(scaler.step(scaled));
      scaler.update();
    }
    EXPECT_TRUE(at::equal(one, other)) << type;
  }
}

// Trains with an overflow on one rank, and returns whether each step was made on this rank.
std::vector<bool> steps_with_one_overflow(const std::shared_ptr<ProcessGroup>& group,
                                          bool whole_gradients) {
  Mlp net;
  DistributedDataParallel<Mlp> model(net, group, {.whole_gradients = whole_gradients});
  optim::Adam optimizer(model, 0.01);
  GradScaler scaler;
  std::vector<bool> made;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = model(testing::values({4, 6}) + group->rank()).square().mean();
    if (step == 1 && group->rank() == 1) loss = loss * kInfinity;
    const at::Tensor before = net->parameters().front().detach().clone();
    scaler.scale(loss).backward();
    if (step >= 2) {
      scaler.unscale_(optimizer);
      clip_grad_norm_(model, 1e-3);
    }
    made.push_back(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(at::equal(before, net->parameters().front()), !made.back()) << step;
  }
  EXPECT_EQ(scaler.get_scale(), 32768);
  return made;
}

TEST(GradScaler, AllRanksSkipTheSameSteps) {
  for (const bool whole_gradients : {true, false}) {
    run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      EXPECT_THAT(steps_with_one_overflow(group, whole_gradients),
                  ElementsAre(true, false, true, true));
    });
  }
}

TEST(GradScaler, RanksWithWholeGradientsExchangeNothing) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallel<Mlp> model(Mlp(), group);
    optim::Adam optimizer(model->parameters(), 0.01);
    GradScaler scaler;
    scaler.scale(model(testing::values({4, 6})).square().mean()).backward();
    const std::uint64_t sent = group->bytes_sent();
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_EQ(group->bytes_sent(), sent);
  });
}

// Bytes that this rank sends during the function.
template <class Function>
std::uint64_t bytes_sent_by(ProcessGroup& group, const Function& function) {
  const std::uint64_t before = group.bytes_sent();
  function();
  return group.bytes_sent() - before;
}

TEST(GradScaler, RanksWithDividedGradientsExchangeOneByteMoreThanWithoutAScaler) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallel<Mlp> model(Mlp(), group, {.whole_gradients = false});
    optim::Adam optimizer(model, 0.01);
    GradScaler scaler;
    const auto step_after_backward = [&](const std::function<void()>& step) {
      optimizer.zero_grad();
      scaler.scale(model(testing::values({4, 6})).square().mean()).backward();
      return bytes_sent_by(*group, step);
    };
    const at::Tensor vote = at::zeros({1}, at::kByte);
    const std::uint64_t byte =
        bytes_sent_by(*group, [&] { group->all_reduce(vote, ReduceOp::min).wait(); });
    ASSERT_GT(byte, 0u);
    step_after_backward([&] { optimizer.step(); });  // the first one may lay out the parameters
    const std::uint64_t without = step_after_backward([&] { optimizer.step(); });
    EXPECT_EQ(step_after_backward([&] { scaler.step(optimizer); }), without + byte);
    scaler.update();
    EXPECT_EQ(step_after_backward([&] { scaler.unscale_(optimizer); }), byte);
    EXPECT_EQ(bytes_sent_by(*group, [&] { scaler.step(optimizer); }), without);
  });
}

TEST(GradScaler, AnOverflowInOneReplicaSkipsTheStep) {
  DataParallel<Mlp> model(Mlp(), {.replicas = 2});
  optim::Adam optimizer(model->parameters(), 0.01);
  GradScaler scaler;
  at::Tensor input = testing::values({4, 6});
  input[3][0] = kInfinity;
  scaler.scale(model(input).mean()).backward();
  EXPECT_FALSE(scaler.step(optimizer));
}

}  // namespace
}  // namespace lockstep
