// SPDX-License-Identifier: BSD-3-Clause
// The fused optimizers beside libtorch's own, over many steps and through files.
#include "lockstep/optim/optimizers.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/support/test_device.h"
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/error.h"

namespace lockstep::optim {
namespace {

using testing::message_of;
using testing::test_device;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;
using Factory = std::function<OptimizerPointer(std::vector<at::Tensor>)>;

template <class Optimizer, class Options>
Factory make(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

// An optimizer of ours and the one of libtorch that it stands for.
struct Pair {
  std::string name;
  Factory fused;
  Factory libtorchs;
};

Pair sgd(std::string name, const SGDOptions& options) {
  return {std::move(name), make<SGD>(options), make<torch::optim::SGD>(options)};
}
Pair adam(std::string name, const AdamOptions& options) {
  return {std::move(name), make<Adam>(options), make<torch::optim::Adam>(options)};
}
Pair adamw(std::string name, const AdamWOptions& options) {
  return {std::move(name), make<AdamW>(options), make<torch::optim::AdamW>(options)};
}

std::vector<Pair> pairs() {
  return {
      sgd("sgd", SGDOptions(0.1)),
      sgd("sgd_decay", SGDOptions(0.1).weight_decay(0.01)),
      sgd("sgd_momentum", SGDOptions(0.1).momentum(0.9).weight_decay(0.01)),
      sgd("sgd_dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3)),
      sgd("sgd_nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true)),
      adam("adam", AdamOptions(0.01)),
      adam("adam_decay", AdamOptions(0.01).weight_decay(0.01).betas({0.8, 0.99})),
      adam("adam_amsgrad", AdamOptions(0.01).amsgrad(true).eps(1e-6)),
      adamw("adamw", AdamWOptions(0.01)),
      adamw("adamw_amsgrad", AdamWOptions(0.01).weight_decay(0.1).amsgrad(true)),
  };
}

// Some shapes, one of them large enough for two threads.
std::vector<at::Tensor> some_parameters(at::ScalarType type = at::kFloat) {
  torch::manual_seed(1);
  std::vector<at::Tensor> made;
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{33, 50}, {7}, {}, {3, 4, 5, 2}, {200, 200}, {0}}) {
    made.push_back(at::randn(shape).to(test_device(), type).set_requires_grad(true));
  }
  return made;
}

// Those of the first group.
const std::vector<at::Tensor>& parameters_of(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].params();
}

// Gives both lists the same gradients. They shrink, so that momentum and amsgrad matter.
void set_gradients(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others,
                   int step) {
  torch::manual_seed(100 + step);
  for (std::size_t i = 0; i < some.size(); ++i) {
    const at::Tensor gradient =
        at::randn(some[i].sizes()).div(1 + 0.1 * step).to(some[i].options());
    some[i].mutable_grad() = gradient;
    others[i].mutable_grad() = gradient.to(others[i].scalar_type());
  }
}

void run_steps(torch::optim::Optimizer& one, torch::optim::Optimizer& other, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_gradients(parameters_of(one), parameters_of(other), step);
    one.step();
    other.step();
  }
}

// The largest difference beside the largest element.
double difference(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return 0;
  const at::Tensor wide = b.detach().to(at::kDouble);
  return ((a.detach().to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

void expect_close(const torch::optim::Optimizer& one, const torch::optim::Optimizer& other,
                  double tolerance) {
  for (std::size_t i = 0; i < parameters_of(one).size(); ++i) {
    EXPECT_LE(difference(parameters_of(one)[i], parameters_of(other)[i]), tolerance) << i;
  }
}

class FusedOptimizer : public ::testing::TestWithParam<Pair> {};

TEST_P(FusedOptimizer, EqualsLibtorchsOverManySteps) {
  // A GPU fuses multiplications with additions, in libtorch's kernels too.
  const double of_floats = test_device().is_cpu() ? 1e-6 : 1e-5;
  for (const auto& [type, tolerance] :
       {std::pair{at::kFloat, of_floats}, std::pair{at::kDouble, 1e-12}}) {
    const auto fused = GetParam().fused(some_parameters(type));
    const auto libtorchs = GetParam().libtorchs(some_parameters(type));
    run_steps(*fused, *libtorchs, 0, 200);
    expect_close(*fused, *libtorchs, tolerance);
  }
}

TEST_P(FusedOptimizer, UpdatesHalfTypesWithStateInFloat) {
  for (const auto& [type, tolerance] :
       {std::pair{at::kBFloat16, 0.05}, std::pair{at::kHalf, 0.005}}) {
    const auto fused = GetParam().fused(some_parameters(type));
    const auto exact = GetParam().libtorchs(some_parameters());
    for (std::size_t i = 0; i < parameters_of(*exact).size(); ++i) {
      const at::NoGradGuard no_grad;
      parameters_of(*exact)[i].copy_(parameters_of(*fused)[i]);
    }
    run_steps(*fused, *exact, 0, 10);
    expect_close(*fused, *exact, tolerance);
    EXPECT_EQ(parameters_of(*fused)[0].scalar_type(), type);
  }
}

TEST_P(FusedOptimizer, HasTheSameBitsWithAnyNumberOfThreads) {
  const auto alone = GetParam().fused(some_parameters());
  const auto together = GetParam().fused(some_parameters());
  const int threads = at::get_num_threads();
  for (int step = 0; step < 3; ++step) {
    set_gradients(parameters_of(*alone), parameters_of(*together), step);
    at::set_num_threads(1);
    alone->step();
    at::set_num_threads(3);
    together->step();
  }
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < parameters_of(*alone).size(); ++i) {
    EXPECT_TRUE(at::equal(parameters_of(*alone)[i], parameters_of(*together)[i])) << i;
  }
}

TEST_P(FusedOptimizer, GoesOnFromAFileOfLibtorchs) {
  const auto libtorchs = GetParam().libtorchs(some_parameters());
  const auto fused = GetParam().fused(some_parameters());
  const auto before = GetParam().fused(some_parameters());
  run_steps(*libtorchs, *before, 0, 5);
  std::stringstream file;
  torch::save(*libtorchs, file);
  torch::load(*fused, file);
  for (std::size_t i = 0; i < parameters_of(*fused).size(); ++i) {
    parameters_of(*fused)[i].detach().copy_(parameters_of(*libtorchs)[i].detach());
  }
  run_steps(*libtorchs, *fused, 5, 10);
  expect_close(*fused, *libtorchs, 1e-6);
}

TEST_P(FusedOptimizer, WritesAFileForLibtorchs) {
  const auto fused = GetParam().fused(some_parameters());
  const auto libtorchs = GetParam().libtorchs(some_parameters());
  const auto before = GetParam().libtorchs(some_parameters());
  run_steps(*fused, *before, 0, 5);
  std::stringstream file;
  torch::save(*fused, file);
  torch::load(*libtorchs, file);
  for (std::size_t i = 0; i < parameters_of(*fused).size(); ++i) {
    parameters_of(*libtorchs)[i].detach().copy_(parameters_of(*fused)[i].detach());
  }
  run_steps(*fused, *libtorchs, 5, 10);
  expect_close(*fused, *libtorchs, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Of, FusedOptimizer, ::testing::ValuesIn(pairs()),
                         [](const auto& test) { return test.param.name; });

TEST(FusedOptimizers, GroupsHaveOptionsOfTheirOwn) {
  const auto both = [](auto make_optimizer) {
    const auto all = some_parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{all[0]});
    groups.emplace_back(std::vector<at::Tensor>{all[1], all[2]},
                        std::make_unique<AdamOptions>(AdamOptions(0.1).weight_decay(0.2)));
    return std::pair{all, make_optimizer(std::move(groups))};
  };
  const auto [fused, fused_optimizer] = both(
      [](auto groups) { return std::make_unique<Adam>(std::move(groups), AdamOptions(0.01)); });
  const auto [libtorchs, optimizer] = both([](auto groups) {
    return std::make_unique<torch::optim::Adam>(std::move(groups), AdamOptions(0.01));
  });
  for (int step = 0; step < 10; ++step) {
    set_gradients(fused, libtorchs, step);
    fused_optimizer->step();
    optimizer->step();
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(difference(fused[i], libtorchs[i]), 1e-6) << i;
}

TEST(FusedOptimizers, FollowsASchedule) {
  Adam fused(some_parameters(), 0.1);
  torch::optim::Adam libtorchs(some_parameters(), 0.1);
  torch::optim::StepLR fused_schedule(fused, 2, 0.5);
  torch::optim::StepLR schedule(libtorchs, 2, 0.5);
  for (int step = 0; step < 6; ++step) {
    run_steps(fused, libtorchs, step, step + 1);
    fused_schedule.step();
    schedule.step();
  }
  EXPECT_EQ(fused.param_groups()[0].options().get_lr(),
            libtorchs.param_groups()[0].options().get_lr());
  EXPECT_LT(fused.param_groups()[0].options().get_lr(), 0.1);
  expect_close(fused, libtorchs, 1e-6);
}

TEST(FusedOptimizers, CallTheClosureWithGradientsAndReturnItsLoss) {
  const at::NoGradGuard no_grad;
  const at::Tensor parameter = at::ones({2}).set_requires_grad(true);
  SGD optimizer({parameter}, 0.5);
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor sum = parameter.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 2);
  EXPECT_TRUE(at::equal(parameter, at::full({2}, 0.5)));
}

TEST(FusedOptimizers, LeaveParametersWithoutAGradientAlone) {
  const auto all = some_parameters();
  const at::Tensor before = all[1].detach().clone();
  Adam optimizer(all, 0.1);
  all[0].mutable_grad() = at::ones_like(all[0]);
  optimizer.step();
  EXPECT_TRUE(at::equal(all[1], before));
  EXPECT_EQ(optimizer.state().size(), 1);
}

// A lazy gradient, as autograd gives one for an imaginary part.
TEST(FusedOptimizers, TakeTheValuesOfLazilyNegatedGradients) {
  const at::Tensor parameter = at::ones({3}).set_requires_grad(true);
  parameter.mutable_grad() = at::_neg_view(at::full({3}, 0.5));
  SGD sgd({parameter}, 1.0);
  sgd.step();
  EXPECT_TRUE(at::equal(parameter, at::full({3}, 1.5)));
  Adam adam({parameter}, 1.0);
  adam.step();
  EXPECT_TRUE(at::allclose(parameter, at::full({3}, 2.5)));
}

TEST(FusedOptimizers, TakeZerosThatHaveNoMemory) {
  const at::Tensor parameter = at::ones({3}).set_requires_grad(true);
  parameter.mutable_grad() = at::_efficientzerotensor({3}, at::TensorOptions(at::kFloat));
  SGD sgd({parameter}, 1.0);
  sgd.step();
  EXPECT_TRUE(at::equal(parameter, at::ones({3})));
}

TEST(FusedOptimizers, UpdateTiedWeightsOnce) {
  const at::Tensor tied = at::ones({3}).set_requires_grad(true);
  SGD optimizer({tied, tied}, 0.5);
  tied.mutable_grad() = at::ones({3});
  optimizer.step();
  EXPECT_TRUE(at::equal(tied, at::full({3}, 0.5)));
}

TEST(FusedOptimizers, RefuseAParameterInTwoGroups) {
  const auto all = some_parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{all[0], all[1]});
  groups.emplace_back(std::vector<at::Tensor>{all[2], all[1]});
  EXPECT_THAT(message_of<UsageError>([&] { Adam(groups, 0.1); }),
              ::testing::AllOf(::testing::HasSubstr("[lockstep::optim::Adam]"),
                               ::testing::HasSubstr("parameter 1 of group 1, of shape [7] is "
                                                    "in group 0 too")));
}

TEST(FusedOptimizers, RefuseSparseGradientsBeforeAnythingHasChanged) {
  torch::nn::Embedding words(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  torch::nn::Linear linear(4, 1);
  AdamW optimizer({linear->weight, words->weight}, 0.1);
  linear(words(at::tensor({1, 2}))).sum().backward();
  const at::Tensor before = linear->weight.detach().clone();
  EXPECT_THAT(
      message_of<UsageError>([&] { optimizer.step(); }),
      ::testing::AllOf(::testing::HasSubstr("[lockstep::optim::AdamW]"),
                       ::testing::HasSubstr("parameter 1 of group 0, "
                                            "of shape [10, 4] has a gradient that is not dense")));
  EXPECT_TRUE(at::equal(linear->weight, before));
}

TEST(FusedOptimizers, KeepStateOfHalfTypesInFloat) {
  const at::Tensor parameter = at::ones({3}, at::kBFloat16).set_requires_grad(true);
  parameter.mutable_grad() = at::ones({3}, at::kBFloat16);
  Adam adam({parameter}, 0.1);
  SGD sgd({parameter}, SGDOptions(0.1).momentum(0.9));
  adam.step();
  sgd.step();
  using torch::optim::AdamParamState;
  using torch::optim::SGDParamState;
  const auto& moments = static_cast<AdamParamState&>(*adam.state().begin()->second);
  const auto& velocity = static_cast<SGDParamState&>(*sgd.state().begin()->second);
  EXPECT_EQ(moments.exp_avg().scalar_type(), at::kFloat);
  EXPECT_EQ(moments.exp_avg_sq().scalar_type(), at::kFloat);
  EXPECT_EQ(velocity.momentum_buffer().scalar_type(), at::kFloat);
  EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
}

// The square of such a gradient is infinite in float, but its share in the moment is not.
TEST(FusedOptimizers, TrainOnAfterALargeGradient) {
  Adam fused({at::ones({2}).set_requires_grad(true)}, 0.1);
  torch::optim::Adam libtorchs({at::ones({2}).set_requires_grad(true)}, 0.1);
  for (int step = 0; step < 2000; ++step) {
    for (torch::optim::Optimizer* one :
         std::initializer_list<torch::optim::Optimizer*>{&fused, &libtorchs}) {
      parameters_of(*one)[0].mutable_grad() = at::full({2}, step == 0 ? 3e19 : 1.0);
      one->step();
    }
  }
  EXPECT_LT(parameters_of(fused)[0][0].item<float>(), 0.9);
  EXPECT_LE(difference(parameters_of(fused)[0], parameters_of(libtorchs)[0]), 1e-5);
}

TEST(FusedOptimizers, BeginWithMomentumWhenItIsSwitchedOn) {
  SGD fused(some_parameters(), SGDOptions(0.1).dampening(0.5));
  torch::optim::SGD libtorchs(some_parameters(), SGDOptions(0.1).dampening(0.5));
  run_steps(fused, libtorchs, 0, 3);
  EXPECT_TRUE(fused.state().empty());
  static_cast<SGDOptions&>(fused.param_groups()[0].options()).momentum(0.9);
  static_cast<SGDOptions&>(libtorchs.param_groups()[0].options()).momentum(0.9);
  run_steps(fused, libtorchs, 3, 10);
  expect_close(fused, libtorchs, 1e-6);
}

TEST(FusedOptimizers, UpdateGroupsThatAreAddedLater) {
  const auto all = some_parameters();
  SGD optimizer({all[0]}, 0.5);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({all[1]}));
  const at::Tensor before = all[1].detach().clone();
  all[1].mutable_grad() = at::ones_like(all[1]);
  optimizer.step();
  EXPECT_TRUE(at::equal(all[1], before - 0.5));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({all[2], all[1]}));
  EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
              ::testing::AllOf(::testing::HasSubstr("[lockstep::optim::SGD]"),
                               ::testing::HasSubstr("parameter 1 of group 2, of shape [7] is "
                                                    "listed before")));
}

TEST(FusedOptimizers, RefuseAGradientOfAnotherType) {
  const at::Tensor parameter = at::ones({2}, at::kBFloat16).set_requires_grad(true);
  parameter.mutable_grad() = at::ones({2});
  SGD optimizer({parameter}, 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
              ::testing::HasSubstr("is BFloat16 on cpu, but its gradient is Float on cpu"));
}

TEST(FusedOptimizers, RefuseComplexParameters) {
  const at::Tensor parameter = at::ones({2}, at::kComplexFloat).set_requires_grad(true);
  parameter.mutable_grad() = at::ones({2}, at::kComplexFloat);
  SGD optimizer({parameter}, 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
              ::testing::HasSubstr("ComplexFloat"));
}

// Gradients of convolutions may lie in another order than their weights, and a parameter may be a
// view with gaps.
TEST(FusedOptimizers, DoNotDependOnTheOrderOfElementsInMemory) {
  const auto with = [](const auto& arrange) {
    torch::manual_seed(3);
    const at::Tensor parameter = arrange(at::randn({4, 3, 2, 5})).detach().set_requires_grad(true);
    return parameter;
  };
  const auto plain = [](const at::Tensor& values) { return values; };
  const auto last = [](const at::Tensor& values) {
    return values.contiguous(at::MemoryFormat::ChannelsLast);
  };
  const auto gaps = [](const at::Tensor& values) {
    return at::empty({4, 3, 2, 9}).narrow(3, 2, 5).copy_(values);
  };
  Adam expected({with(plain)}, 0.1);
  Adam channels_last({with(last)}, 0.1);
  Adam with_gaps({with(gaps)}, 0.1);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradient = at::randn({4, 3, 2, 5});
    parameters_of(expected)[0].mutable_grad() = last(gradient);
    parameters_of(channels_last)[0].mutable_grad() = gradient;
    parameters_of(with_gaps)[0].mutable_grad() = gradient;
    for (torch::optim::Optimizer* one :
         std::initializer_list<torch::optim::Optimizer*>{&expected, &channels_last, &with_gaps}) {
      one->step();
    }
  }
  EXPECT_TRUE(at::equal(parameters_of(channels_last)[0], parameters_of(expected)[0]));
  EXPECT_TRUE(at::equal(parameters_of(with_gaps)[0], parameters_of(expected)[0]));
}

TEST(FusedOptimizers, TellAutogradThatParametersHaveChanged) {
  const at::Tensor parameter = at::ones({2}).set_requires_grad(true);
  const at::Tensor loss = parameter.mul(parameter).sum();
  parameter.mutable_grad() = at::ones({2});
  SGD optimizer({parameter}, 0.1);
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(FusedOptimizers, RefuseWhatLibtorchRefuses) {
  EXPECT_THROW(Adam(some_parameters(), AdamOptions(-1)), c10::Error);
  EXPECT_THROW(SGD(some_parameters(), SGDOptions(0.1).nesterov(true)), c10::Error);
}

}  // namespace
}  // namespace lockstep::optim
