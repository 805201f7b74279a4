// SPDX-License-Identifier: BSD-3-Clause
// The compression hooks on one host, and what all ready-made hooks have in common. How they round
// between hosts is tested on every backend (tests/comm/conformance/comm_hooks.cpp).
#include "lockstep/hooks/comm_hooks.h"

#include <functional>
#include <string>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

struct NamedHook {
  std::string name;
  std::function<CommHook(const std::shared_ptr<ProcessGroup>&)> make;
};

const std::vector<NamedHook> kAllHooks{
    {"fp16_compress_hook", [](const auto& group) { return fp16_compress_hook(group); }},
    {"bf16_compress_hook", [](const auto& group) { return bf16_compress_hook(group); }},
    {"power_sgd_hook",
     [](const auto& group) {
       return power_sgd_hook({.group = group,
                              .matrix_approximation_rank = 8,
                              .start_powerSGD_iter = 2,
                              .min_compression_rate = 0});
     }},
    {"post_local_sgd_hook",
     [](const auto& group) { return post_local_sgd_hook({.group = group}); }}};

TEST(CommHooks, OnOneHostTheCompressHooksChangeNoBit) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const auto& make : {fp16_compress_hook, bf16_compress_hook}) {
        torch::nn::Linear net(5, 4);
        set_weights(*net, 1);
        net->to(type);
        DistributedDataParallel model(net, group);
        const at::Tensor x = values({2, 5}, group->rank()).to(type);
        model(x).sum().backward();
        const at::Tensor expected = net->weight.grad().clone();
        model->register_comm_hook(make(group));
        reset_gradients(*net);
        model(x).sum().backward();
        EXPECT_TRUE(torch::equal(net->weight.grad(), expected)) << type;
      }
    }
  });
}

TEST(CommHooks, AGroupOfAnotherSizeIsRefused) {
  for (const NamedHook& hook : kAllHooks) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto alone = group->split({group->rank()});
      Mlp net;
      DistributedDataParallel model(net, group);
      model->register_comm_hook(hook.make(alone));
      const std::string message = message_of<UsageError>([&] {
        model(values({2, 6})).sum().backward();
      });
      EXPECT_THAT(message, HasSubstr("[" + hook.name + "] rank"));
      EXPECT_THAT(message, HasSubstr("the hook's group has 1 ranks, the model's has 2"));
    });
  }
}

TEST(CommHooks, ANullGroupIsRefused) {
  for (const NamedHook& hook : kAllHooks) {
    EXPECT_THROW(hook.make(nullptr), UsageError) << hook.name;
  }
}

// Rank 0 uses `left`, rank 1 `right`, and both use `idle` or neither.
struct ThreeBranchesImpl : torch::nn::Module {
  ThreeBranchesImpl() {
    left = register_module("left", torch::nn::Linear(8, 8));
    right = register_module("right", torch::nn::Linear(8, 8));
    idle = register_module("idle", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_idle) {
    const at::Tensor branch = use_left ? left(x) : right(x);
    return use_idle ? branch + idle(x) : branch;
  }
  torch::nn::Linear left{nullptr}, right{nullptr}, idle{nullptr};
};
TORCH_MODULE(ThreeBranches);

TEST(CommHooks, AParameterThatOneRankUsesGetsAGradientOnAll) {
  for (const NamedHook& hook : kAllHooks) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      ThreeBranches net;
      DistributedDataParallel model(net, group);
      model->register_comm_hook(hook.make(group));
      const at::Tensor x = values({2, 8});
      const at::Tensor of_weight = x.sum(0).expand({8, 8});
      for (int step = 0; step < 7; ++step) {
        // PowerSGD compresses from step 2 on.
        const bool use_idle = step == 3 || step == 6;
        const std::string what = hook.name + " in step " + std::to_string(step);
        reset_gradients(*net);
        model(x, group->rank() == 0, use_idle).sum().backward();
        for (const auto& branch : {net->left, net->right}) {
          expect_close(branch->weight.grad(), of_weight / 2, what);
          expect_close(branch->bias.grad(), at::full({8}, 1.F), what);
        }
        expect_close(net->idle->weight.grad(), use_idle ? of_weight : at::Tensor(), what);
        EXPECT_EQ(model->unused_parameters().size(), use_idle ? 0 : 2) << what;
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
