// SPDX-License-Identifier: BSD-3-Clause
// What PowerSGD makes of gradients: exact where the rank suffices, close over many steps where not.
#include <cmath>
#include <functional>
#include <limits>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "lockstep/hooks/comm_hooks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// Compresses from the first iteration on, and forgets everything between iterations.
PowerSGDState without_memory(const std::shared_ptr<ProcessGroup>& group, int rank) {
  return {.group = group,
          .matrix_approximation_rank = rank,
          .start_powerSGD_iter = 0,
          .min_compression_rate = 0,
          .use_error_feedback = false,
          .warm_start = false};
}

template <class Net>
void expect_exact_at_full_rank(const at::Tensor& x, const std::function<void(Net&)>& prepare = {}) {
  for (const auto& buckets : {kOneBucket, kManyBuckets}) {
    run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      Net net;
      Net reference;
      for (Net* each : {&net, &reference}) {
        set_weights(**each, 1);
        if (prepare) prepare(*each);
      }
      DistributedDataParallel model(net, group, buckets);
      DistributedDataParallel plain(reference, group, buckets);
      model->register_comm_hook(power_sgd_hook(without_memory(group, 100)));
      for (int step = 0; step < 3; ++step) {
        const at::Tensor mine = x * (group->rank() + step + 1);
        model(mine).square().mean().backward();
        plain(mine).square().mean().backward();
        expect_same_gradients(*net, *reference);
        reset_gradients(*net);
        reset_gradients(*reference);
      }
    });
  }
}

TEST(PowerSgdHook, AFullRankGivesTheMean) {
  expect_exact_at_full_rank<Mlp>(values({20, 6}));
}

// Gradients of a lower rank than their factors: columns of P are rounding errors, or dependent.
TEST(PowerSgdHook, GradientsOfLowRankAreExactToo) {
  expect_exact_at_full_rank<Mlp>(values({1, 6}));
}

TEST(PowerSgdHook, FiltersInAnyMemoryFormat) {
  expect_exact_at_full_rank<ConvNet>(values({3, 2, 8, 8}));
  expect_exact_at_full_rank<ConvNet>(values({3, 2, 8, 8}), [](ConvNet& net) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      if (parameter.dim() != 4) continue;
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  });
}

TEST(PowerSgdHook, GradientsInDouble) {
  expect_exact_at_full_rank<Mlp>(values({20, 6}).to(at::kDouble),
                                 [](Mlp& net) { net->to(at::kDouble); });
}

TEST(PowerSgdHook, GradientsInBfloat16) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear net(12, 12);
    set_weights(*net, 1);
    net->to(at::kBFloat16);
    DistributedDataParallel model(net, group);
    PowerSGDState state = without_memory(group, 12);
    state.start_powerSGD_iter = 2;
    state.use_error_feedback = true;
    model->register_comm_hook(power_sgd_hook(state));
    const at::Tensor mine = values({20, 12}, group->rank()).to(at::kBFloat16);
    at::Tensor expected;
    for (int step = 0; step < 5; ++step) {
      reset_gradients(*net);
      model(mine).square().sum().backward();
      if (step == 0) expected = net->weight.grad().to(at::kFloat);
      // Off by one rounding of the result.
      EXPECT_TRUE(torch::allclose(net->weight.grad().to(at::kFloat), expected, 0.01, 0.01));
    }
  });
}

TEST(PowerSgdHook, TheFirstIterationsReduceAsWithoutAHook) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Wide net;
    Wide reference;
    set_weights(*net, 1);
    set_weights(*reference, 1);
    DistributedDataParallel model(net, group);
    DistributedDataParallel plain(reference, group);
    model->register_comm_hook(power_sgd_hook({.group = group, .start_powerSGD_iter = 3}));
    const at::Tensor mine = values({8, 6}, group->rank());
    for (int step = 0; step < 5; ++step) {
      reset_gradients(*net);
      reset_gradients(*reference);
      model(mine).square().mean().backward();
      plain(mine).square().mean().backward();
      EXPECT_EQ(torch::equal(net->middle->weight.grad(), reference->middle->weight.grad()),
                step < 3);
      // One dimension, so never compressed.
      EXPECT_TRUE(torch::equal(net->middle->bias.grad(), reference->middle->bias.grad()));
    }
  });
}

TEST(PowerSgdHook, EveryRankHasTheSameBitsOfARankTwoMatrix) {
  for (const auto& buckets : {kOneBucket, kManyBuckets}) {
    run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(100, 100);
      set_weights(*net, 1);
      DistributedDataParallel model(net, group, buckets);
      model->register_comm_hook(power_sgd_hook(
          {.group = group, .matrix_approximation_rank = 2, .start_powerSGD_iter = 2}));
      for (int step = 0; step < 5; ++step) {
        reset_gradients(*net);
        model(values({8, 6}, group->rank())).square().mean().backward();
      }
      for (const auto& item : net->named_parameters()) {
        const at::Tensor of_rank_0 = item.value().grad().clone();
        group->broadcast(of_rank_0, 0).wait();
        EXPECT_TRUE(torch::equal(item.value().grad(), of_rank_0)) << item.key();
      }
      const at::Tensor singular_values =
          std::get<1>(at::svd(net->middle->weight.grad().to(at::kDouble), true, false));
      EXPECT_GT(singular_values[1].item<double>(), 1e-6 * singular_values[0].item<double>());
      EXPECT_LT(singular_values[2].item<double>(), 1e-6 * singular_values[0].item<double>());
    });
  }
}

// What one step loses, later steps bring: the sum over many steps is off by no more than the sum
// over a few.
double error_of_sum(bool feedback, int steps) {
  double error = 0;
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(12, 12).bias(false));
    DistributedDataParallel model(net, group);
    PowerSGDState state = without_memory(group, 1);
    state.start_powerSGD_iter = 2;
    state.use_error_feedback = feedback;
    state.warm_start = true;
    model->register_comm_hook(power_sgd_hook(state));
    const at::Tensor factor = values({12, 12}, 1 + group->rank());  // the gradient
    at::Tensor mean = factor.clone();
    group->all_reduce(mean, ReduceOp::mean).wait();
    at::Tensor sum = at::zeros_like(mean);
    for (int step = 0; step < 2 + steps; ++step) {
      reset_gradients(*net);
      (model(torch::eye(12)) * factor.t()).sum().backward();
      if (step >= 2) sum += net->weight.grad();
    }
    if (group->rank() == 0) error = ((sum - steps * mean).norm() / mean.norm()).item<double>();
  });
  return error;
}

TEST(PowerSgdHook, ErrorFeedbackKeepsTheSumOverManyStepsClose) {
  const double bound = 40;
  EXPECT_LT(error_of_sum(true, 100), bound);
  EXPECT_LT(error_of_sum(true, 400), bound);
  EXPECT_GT(error_of_sum(false, 400), 4 * bound);
}

// A column of zeros in Q would stay so, since P = M Q and Q = M^T P.
TEST(PowerSgdHook, AGradientThatWasZeroIsReducedAgain) {
  for (const bool feedback : {false, true}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      torch::nn::Linear net(torch::nn::LinearOptions(12, 12).bias(false));
      DistributedDataParallel model(net, group);
      PowerSGDState state = without_memory(group, 2);
      state.start_powerSGD_iter = 2;
      state.use_error_feedback = feedback;
      state.warm_start = true;
      model->register_comm_hook(power_sgd_hook(state));
      // Its rank is 2, but in step 4 it is 1.
      const at::Tensor whole = values({12, 2}, 1).matmul(values({2, 12}, 2));
      const at::Tensor half = values({12, 1}, 1).matmul(values({1, 12}, 2));
      for (int step = 0; step < 9; ++step) {
        const at::Tensor factor = step == 2 ? at::zeros({12, 12}) : step == 4 ? half : whole;
        reset_gradients(*net);
        (model(torch::eye(12)) * factor.t()).sum().backward();
        // A new Q may be almost orthogonal to the gradient's rows, which magnifies rounding errors.
        const at::Tensor off = net->weight.grad() - factor;
        EXPECT_LT(off.norm().item<double>(), 0.01 * whole.norm().item<double>()) << step;
      }
    });
  }
}

struct TwoBranchesImpl : torch::nn::Module {
  TwoBranchesImpl() {
    const auto options = torch::nn::LinearOptions(12, 12).bias(false);
    left = register_module("left", torch::nn::Linear(options));
    right = register_module("right", torch::nn::Linear(options));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left) { return use_left ? left(x) : right(x); }
  torch::nn::Linear left{nullptr}, right{nullptr};
};
TORCH_MODULE(TwoBranches);

// The gradients of the left branch in the steps that use it; the others use the right one.
std::vector<at::Tensor> gradients_of_left(const std::vector<bool>& uses_left) {
  std::vector<at::Tensor> gradients;
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    TwoBranches net;
    DistributedDataParallel model(net, group);
    PowerSGDState state = without_memory(group, 1);
    state.start_powerSGD_iter = 2;
    state.use_error_feedback = true;
    state.warm_start = true;
    model->register_comm_hook(power_sgd_hook(state));
    for (const bool use_left : uses_left) {
      const at::Tensor before = net->left->weight.grad();
      const at::Tensor kept = before.defined() ? before.clone() : before;
      if (use_left) reset_gradients(*net);
      (model(torch::eye(12), use_left) * values({12, 12}, group->rank())).sum().backward();
      const at::Tensor& gradient = net->left->weight.grad();
      if (use_left && group->rank() == 0) gradients.push_back(gradient.clone());
      if (!use_left) {
        EXPECT_TRUE(torch::equal(gradient, kept));
      }
    }
  });
  return gradients;
}

TEST(PowerSgdHook, AStepThatUsesAParameterNowhereLeavesItsMemory) {
  const auto expected = gradients_of_left({true, true, true, true, true, true});
  const auto actual = gradients_of_left({true, true, true, false, true, false, false, true, true});
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    expect_close(actual[i], expected[i], "use " + std::to_string(i));
  }
}

double loss_after_training(bool compressed) {
  double result = 0;
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(32, 32);
    set_weights(*net, 1);
    DistributedDataParallel model(net, group);
    if (compressed) {
      model->register_comm_hook(
          power_sgd_hook({.group = group, .start_powerSGD_iter = 2, .min_compression_rate = 1}));
    }
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const at::Tensor x = values({32, 6}, 1);
    const at::Tensor wanted = torch::sin(x.matmul(values({6, 3}, 2)));
    for (int step = 0; step < 400; ++step) {
      reset_gradients(*net);
      torch::mse_loss(model(part(x, group->rank(), 2)), part(wanted, group->rank(), 2)).backward();
      optimizer.step();
    }
    if (group->rank() == 0) {
      result = torch::mse_loss(net->forward(x), wanted).item<double>();
    }
  });
  return result;
}

TEST(PowerSgdHook, TrainsAboutAsWellAsWithoutAHook) {
  const double plain = loss_after_training(false);
  const double compressed = loss_after_training(true);
  EXPECT_NE(compressed, plain);
  EXPECT_LT(compressed, 1.5 * plain);
}

TEST(PowerSgdHook, AfterGradientsThatAreNotFiniteItBeginsAnew) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear net(6, 6);
    DistributedDataParallel model(net, group);
    model->register_comm_hook(
        power_sgd_hook({.group = group, .start_powerSGD_iter = 2, .min_compression_rate = 1}));
    for (int step = 0; step < 6; ++step) {
      const bool breaks = step == 3 && group->rank() == 1;
      reset_gradients(*net);
      (model(values({4, 6})) * (breaks ? std::numeric_limits<float>::infinity() : 1))
          .sum()
          .backward();
      EXPECT_EQ(net->weight.grad().isfinite().all().item<bool>(), step != 3) << step;
    }
  });
}

struct FactorImpl : torch::nn::Module {
  FactorImpl() { weight = register_parameter("weight", torch::zeros({12, 12}, at::kHalf)); }
  // The gradient of the sum is x.
  at::Tensor forward(const at::Tensor& x) { return weight * x; }
  at::Tensor weight;
};
TORCH_MODULE(Factor);

// An approximation may have larger elements than the gradient.
TEST(PowerSgdHook, AfterAProductBeyondTheRangeOfHalfItBeginsAnew) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Factor net;
    DistributedDataParallel model(net, group);
    model->register_comm_hook(
        power_sgd_hook({.group = group, .start_powerSGD_iter = 2, .min_compression_rate = 1}));
    at::Tensor gradient = at::zeros({12, 12});
    gradient.select(0, 0).fill_(1);
    gradient.select(1, 0).fill_(1);
    for (int step = 0; step < 8; ++step) {
      const double scale = step == 5 ? 60000 : 1;  // half's largest number is 65504
      reset_gradients(*net);
      model((gradient * scale).to(at::kHalf)).sum().backward();
      EXPECT_EQ(net->weight.grad().isfinite().all().item<bool>(), step != 5) << step;
    }
  });
}

TEST(PowerSgdHook, RefusesOptionsThatContradictEachOther) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto message = [&](PowerSGDState state) {
      return message_of<UsageError>([&] { power_sgd_hook(std::move(state)); });
    };
    const char* const too_early = "start_powerSGD_iter is 1";
    EXPECT_THAT(message({.group = group, .start_powerSGD_iter = 1}), HasSubstr(too_early));
    EXPECT_THAT(message({.group = group, .start_powerSGD_iter = 1, .use_error_feedback = false}),
                HasSubstr(too_early));
    EXPECT_THAT(message({.group = group, .start_powerSGD_iter = 1, .warm_start = false}),
                HasSubstr(too_early));
    EXPECT_THAT(message({.group = group,
                         .start_powerSGD_iter = 1,
                         .use_error_feedback = false,
                         .warm_start = false}),
                "");
    EXPECT_THAT(message({.group = group, .matrix_approximation_rank = 0}),
                HasSubstr("matrix_approximation_rank is 0"));
    EXPECT_THAT(message({.group = group, .min_compression_rate = -1}),
                HasSubstr("min_compression_rate is -1"));
    EXPECT_THAT(message({.group = group, .orthogonalization_epsilon = NAN}),
                HasSubstr("orthogonalization_epsilon is nan"));
  });
}

}  // namespace
}  // namespace lockstep::testing
