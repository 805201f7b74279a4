// SPDX-License-Identifier: BSD-3-Clause
// Parameters that some backwards, or some ranks, do not use.
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two branches, of which each forward takes those it is told to.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    left = register_module("left", torch::nn::Linear(3, 3));
    right = register_module("right", torch::nn::Linear(3, 3));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_right) {
    at::Tensor result = x.clone().requires_grad_();
    if (use_left) result = result + left(x);
    if (use_right) result = result + right(x);
    return result;
  }
  torch::nn::Linear left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);

// Both settings: gradients in a bucket each, and all in one.
const std::vector<DistributedDataParallelOptions> kBuckets = {
    {.bucket_cap_mb = 0, .first_bucket_mb = 0}, {}};

TEST(ReducerUnused, OnOneRankCountsAsZeroThere) {
  for (const auto& options : kBuckets) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Branches net;
      DistributedDataParallel model(net, group, options);
      const at::Tensor x = values({4, 3});
      // Also from step to step another rank uses it.
      for (int step = 0; step < 4; ++step) {
        (step < 2 ? reset_gradients : zero_gradients)(*net);
        model(x, true, group->rank() == step % 2).sum().backward();
        Branches reference;
        reference->forward(x, true, true).sum().backward();
        expect_close(net->left->weight.grad(), reference->left->weight.grad(), "left");
        expect_close(net->right->weight.grad(), reference->right->weight.grad() / 2, "right");
        EXPECT_THAT(model->unused_parameters(), IsEmpty());
      }
    });
  }
}

TEST(ReducerUnused, OnEveryRankStayWithoutAGradient) {
  for (const auto& options : kBuckets) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Branches net;
      DistributedDataParallel model(net, group, options);
      for (int step = 0; step < 3; ++step) {
        model(values({4, 3}), true, false).sum().backward();
        EXPECT_TRUE(net->left->weight.grad().defined());
        EXPECT_FALSE(net->right->weight.grad().defined());
        EXPECT_THAT(model->unused_parameters(), ElementsAre("right.weight", "right.bias"));
      }
    });
  }
}

TEST(ReducerUnused, OnEveryRankKeepTheBitsOfTheirGradient) {
  for (const auto& options : kBuckets) {
    run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      Branches net;
      DistributedDataParallel model(net, group, options);
      const at::Tensor x = values({4, 3}, group->rank());
      model(x, true, true).sum().backward();
      const at::Tensor view = net->right->weight.grad();
      // As the view that it is, and as a tensor of the user's; other bits on each rank.
      const std::uint32_t quiet_nan = 0x7fc00123u + static_cast<std::uint32_t>(group->rank());
      std::memcpy(net->right->weight.grad().data_ptr(), &quiet_nan, sizeof(quiet_nan));
      const at::Tensor own = values({3}, 10 + group->rank());
      net->right->bias.mutable_grad() = own;
      const at::Tensor before = net->right->weight.grad().clone();
      for (int step = 0; step < 2; ++step) {
        model(x, true, false).sum().backward();
        EXPECT_EQ(
            std::memcmp(net->right->weight.grad().data_ptr(), before.data_ptr(), before.nbytes()),
            0);
        EXPECT_TRUE(torch::equal(net->right->bias.grad(), values({3}, 10 + group->rank())));
        EXPECT_THAT(model->unused_parameters(), ElementsAre("right.weight", "right.bias"));
      }
    });
  }
}

TEST(ReducerUnused, ARankThatUsesNothingTakesPart) {
  for (const auto& options : kBuckets) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Branches net;
      DistributedDataParallel model(net, group, options);
      for (int step = 0; step < 3; ++step) {
        const bool use = group->rank() == 1;
        reset_gradients(*net);
        model(values({2, 3}), use, use).sum().backward();
        ASSERT_TRUE(net->left->bias.grad().defined());
        expect_close(net->left->bias.grad(), torch::ones({3}), "left");
      }
    });
  }
}

TEST(ReducerUnused, InTheFirstBackwardAndUsedLater) {
  for (const auto& options : kBuckets) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Branches net;
      DistributedDataParallel model(net, group, options);
      const at::Tensor x = values({2, 3});
      for (const auto& [left, right] : std::vector<std::pair<bool, bool>>{
               {true, false}, {false, true}, {true, true}, {false, false}, {true, true}}) {
        reset_gradients(*net);
        model(x, left, right).sum().backward();
        EXPECT_EQ(net->left->bias.grad().defined(), left);
        EXPECT_EQ(net->right->bias.grad().defined(), right);
        if (left) expect_close(net->left->bias.grad(), torch::full({3}, 2.), "left");
        if (right) expect_close(net->right->bias.grad(), torch::full({3}, 2.), "right");
      }
    });
  }
}

TEST(ReducerUnused, UseWithoutSynchronisationCountsAtTheNextReduction) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Branches net;
    DistributedDataParallel model(net, group);
    const at::Tensor x = values({2, 3});
    for (int step = 0; step < 2; ++step) {
      reset_gradients(*net);
      {
        const NoSync guard = model->no_sync();
        model(x * (group->rank() + 1), false, true).sum().backward();
      }
      model(x, true, false).sum().backward();
      EXPECT_THAT(model->unused_parameters(), IsEmpty());
      Branches reference;
      reference->forward(x * 1.5, false, true).sum().backward();
      expect_close(net->right->weight.grad(), reference->right->weight.grad(), "right");
    }
  });
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    body = register_module("body", torch::nn::Linear(3, 3));
    head = register_module("head", torch::nn::Linear(3, 2));
    other = register_module("other", torch::nn::Linear(3, 2));
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor features = body(x);
    return {head(features), other(features)};
  }
  torch::nn::Linear body{nullptr}, head{nullptr}, other{nullptr};
};
TORCH_MODULE(TwoHeads);

TEST(ReducerUnused, AnOutputThatIsNotInTheLossLeavesItsParametersUnused) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    TwoHeads net;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step) {
      const auto [head, other] = model(values({4, 3}));
      head.sum().backward();
      EXPECT_TRUE(net->head->weight.grad().defined());
      EXPECT_FALSE(net->other->weight.grad().defined());
      EXPECT_THAT(model->unused_parameters(), ElementsAre("other.weight", "other.bias"));
    }
  });
}

TEST(ReducerUnused, AParameterUsedOutsideOfForwardIsReducedToo) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Branches net;
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 0, .first_bucket_mb = 0});
    for (int step = 0; step < 3; ++step) {
      reset_gradients(*net);
      const at::Tensor penalty = net->right->bias.sum() * (group->rank() + 1);
      (model(values({4, 3}), true, false).sum() + penalty).backward();
      expect_close(net->right->bias.grad(), torch::full({3}, 1.5), "right");
      EXPECT_THAT(model->unused_parameters(), ElementsAre("right.weight"));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
