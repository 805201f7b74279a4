// SPDX-License-Identifier: BSD-3-Clause
// Sharded optimizers whose ranks share memory: in one pass they average gradients, update, and
// store the new values for every rank.
#include <cmath>
#include <memory>
#include <vector>

#include "tests/optim/ranks.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::run_processes;
using testing::Wide;

// A model in channels_last, whose second branch only some ranks use.
struct TwoBranchesImpl : torch::nn::Module {
  TwoBranchesImpl() {
    register_module("conv", conv);
    register_module("branch", branch);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& x, bool uses_branch) {
    const at::Tensor y = conv(x).mean({2, 3});
    return uses_branch ? branch(y) : y;
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 4, 3)};
  torch::nn::Linear branch{4, 4};
};
TORCH_MODULE(TwoBranches);

// One net is trained with divided gradients by a sharded optimizer, its copy with whole ones by one
// that is not. `backward(model, step)` computes gradients; `change(model, optimizer)` comes before
// each step.
template <class Net, class Backward>
void expect_same_training(const std::shared_ptr<ProcessGroup>& group, Net sharded_net, Net net,
                          const torch::optim::AdamOptions& options, const Backward& backward,
                          const std::function<void(torch::optim::Optimizer&)>& change = {}) {
  testing::copy_state(*sharded_net, *net);
  DistributedDataParallel<Net> sharded_model(sharded_net, group, {.whole_gradients = false});
  DistributedDataParallel<Net> model(net, group);
  Adam sharded(sharded_model, options);
  Adam optimizer(net->parameters(), options);
  const auto take_step = [&](auto& wrapped, Adam& by, int step) {
    by.zero_grad();
    backward(wrapped, step);
    if (change) change(by);
    by.step();
  };
  for (int step = 0; step < 5; ++step) {
    take_step(sharded_model, sharded, step);
    take_step(model, optimizer, step);
  }
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(at::equal(sharded_net->named_parameters()[item.key()], item.value())) << item.key();
  }
}

at::Tensor input_of(int rank, int step) {
  return testing::values({4, 6}) + rank + 0.5 * step;
}

TEST(SinglePass, OfLargeLayersOnSeveralThreads) {
  run_processes(3, [](const std::shared_ptr<ProcessGroup>& group) {
    at::set_num_threads(2);
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      Wide sharded_net;
      Wide net;
      sharded_net->to(type);
      net->to(type);
      expect_same_training(
          group, sharded_net, net, torch::optim::AdamOptions(0.01).amsgrad(type == at::kFloat),
          [&](auto& model, int step) {
            model(input_of(group->rank(), step).to(type)).square().mean().backward();
          });
    }
  });
}

TEST(SinglePass, TakesTurnsWithStepsInWhichAParameterIsUnused) {
  run_processes(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor x = testing::values({2, 3, 6, 6}).to(at::kFloat) + group->rank();
    expect_same_training(group, TwoBranches(), TwoBranches(), torch::optim::AdamOptions(0.01),
                         [&](auto& model, int step) {
                           const bool uses_branch = step % 2 == 0 && group->rank() == 1;
                           model(x, uses_branch).square().mean().backward();
                         });
  });
}

TEST(SinglePass, TakesUpGradientsThatWereReplacedAndUnscaled) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    expect_same_training(
        group, Wide(), Wide(), torch::optim::AdamOptions(0.01),
        [&](auto& model, int step) {
          model(input_of(group->rank(), step)).square().mean().backward();
        },
        [](torch::optim::Optimizer& optimizer) {
          for (const auto& parameters : optimizer.param_groups()) {
            for (const at::Tensor& parameter : parameters.params()) {
              parameter.mutable_grad() = parameter.grad() * 8;
            }
          }
          GradScaler scaler({.init_scale = 8});
          scaler.unscale_(optimizer);
        });
  });
}

TEST(SinglePass, BytesAreThoseOfAReductionAndAnExchange) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Wide net;
    DistributedDataParallel model(net, group, {.whole_gradients = false});
    Adam optimizer(model, 0.01);
    const auto bytes_of_a_step = [&](bool clips) {
      const std::uint64_t before = group->bytes_sent();
      optimizer.zero_grad();
      model(input_of(0, 0)).square().mean().backward();
      if (clips) clip_grad_value_(model, 1);
      optimizer.step();
      return group->bytes_sent() - before;
    };
    bytes_of_a_step(false);
    EXPECT_EQ(bytes_of_a_step(false), bytes_of_a_step(true));
  });
}

struct TwoOptimizers {
  explicit TwoOptimizers(const std::shared_ptr<ProcessGroup>& group)
      : first({parameter(group)}, 0.1, group), second({parameter(group)}, 0.1, group) {}

  static at::Tensor parameter(const std::shared_ptr<ProcessGroup>&) {
    const at::Tensor tensor = at::zeros({1000}).set_requires_grad(true);
    tensor.mutable_grad() = at::ones_like(tensor);
    return tensor;
  }

  Adam first;
  Adam second;
};

TEST(SinglePass, RanksThatStepDifferentOptimizersAreToldSo) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    TwoOptimizers optimizers(group);
    Adam& mine = group->rank() == 0 ? optimizers.first : optimizers.second;
    const at::Tensor parameter = mine.param_groups()[0].params()[0];
    EXPECT_THAT(message_of<UsageError>([&] { mine.step(); }),
                HasSubstr("other ranks have called step() of another optimizer"));
    EXPECT_TRUE((parameter == 0).all().item<bool>());
    EXPECT_TRUE(group->symmetric_memory(parameter).empty());
  });
}

TEST(SinglePass, AStepBesideABarrierIsAMismatch) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    TwoOptimizers optimizers(group);
    const auto message = message_of<UsageError>([&] {
      if (group->rank() == 1) group->barrier().wait();
      optimizers.first.step();
    });
    EXPECT_THAT(message, HasSubstr("barrier"));
  });
}

}  // namespace
}  // namespace lockstep::optim
