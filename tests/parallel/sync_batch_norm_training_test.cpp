// SPDX-License-Identifier: BSD-3-Clause
// Nets with SyncBatchNorm under DistributedDataParallel.
#include <functional>
#include <memory>
#include <string>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)), torch::nn::BatchNorm2d(4),
      torch::nn::ReLU(), torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3).bias(false)),
      torch::nn::BatchNorm2d(3), torch::nn::Flatten(), torch::nn::Linear(12, 3));
  set_weights(*net, 3);
  net->to(at::kDouble);
  return net;
}

at::Tensor batch(int step) {
  return values({12, 2, 6, 6}, 40. * step).to(at::kDouble);
}

at::Tensor loss_of(const at::Tensor& output) {
  return (output - 1).square().mean();
}

torch::optim::SGD make_optimizer(torch::nn::Module& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

void expect_state_of_one_process(const torch::nn::Module& actual,
                                 const torch::nn::Module& expected) {
  const auto compare = [](const auto& tensors, const auto& wanted) {
    for (const auto& item : tensors) {
      EXPECT_TRUE(torch::allclose(item.value(), wanted[item.key()], 1e-10, 1e-12)) << item.key();
    }
  };
  compare(actual.named_parameters(), expected.named_parameters());
  compare(actual.named_buffers(), expected.named_buffers());
}

TEST(SyncBatchNormTraining, IsTrainingOfOneProcessOnTheWholeBatch) {
  torch::nn::Sequential expected = make_net();
  auto optimizer = make_optimizer(*expected);
  for (int step = 0; step < 5; ++step) {
    reset_gradients(*expected);
    loss_of(expected->forward(batch(step))).backward();
    optimizer.step();
  }
  for (const auto& options : {kOneBucket, kManyBuckets}) {
    for (const int ranks : {1, 2, 3}) {
      run_rank_threads(ranks, [&](const Group& group) {
        torch::nn::Sequential net = make_net();
        auto own = make_optimizer(*net);  // made before the conversion
        convert_sync_batchnorm(net, group);
        DistributedDataParallel model(net, group, options);
        for (int step = 0; step < 5; ++step) {
          reset_gradients(*net);
          loss_of(model(part(batch(step), group->rank(), ranks))).backward();
          own.step();
        }
        expect_state_of_one_process(*net, *expected);
        check_in_sync(model, {.gradients = true});
      });
    }
  }
}

TEST(SyncBatchNormTraining, StatisticsAreSynchronizedWithinNoSync) {
  torch::nn::Sequential expected = make_net();
  for (int half = 0; half < 2; ++half) loss_of(expected->forward(batch(half))).backward();
  run_rank_threads(2, [&](const Group& group) {
    torch::nn::Sequential net = make_net();
    convert_sync_batchnorm(net, group);
    DistributedDataParallel model(net, group);
    for (int half = 0; half < 2; ++half) {
      const NoSync guard = model->no_sync(half == 0);
      loss_of(model(part(batch(half), group->rank(), 2))).backward();
    }
    expect_same_gradients(*net, *expected);
    expect_state_of_one_process(*net, *expected);
  });
}

// The branch comes before the norm in backward.
struct BranchAfterNormImpl : torch::nn::Module {
  BranchAfterNormImpl() {
    first = register_module("first", torch::nn::Linear(3, 4));
    norm = register_module("norm", SyncBatchNorm(4));
    branch = register_module("branch", torch::nn::Linear(4, 3));
    last = register_module("last", torch::nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& x, bool use_branch) {
    const at::Tensor hidden = norm(first(x));
    return use_branch ? last(hidden) + branch(hidden) : last(hidden);
  }
  torch::nn::Linear first{nullptr}, branch{nullptr}, last{nullptr};
  SyncBatchNorm norm{nullptr};
};
TORCH_MODULE(BranchAfterNorm);

void train_with_branch_on_rank_0(const Group& group, const Group& group_of_norms) {
  BranchAfterNorm net;
  set_weights(*net, 1);
  convert_sync_batchnorm(net, group_of_norms);
  DistributedDataParallel model(net, group, kManyBuckets);
  for (int step = 0; step < 3; ++step) {
    const bool use_branch = step == 0 || group->rank() == 0;
    loss_of(model(values({4, 3}, group->rank()), use_branch)).backward();
  }
}

TEST(SyncBatchNormTraining, ParametersThatOneRankUsesNeedAGroupOfTheirOwn) {
  run_rank_threads(2, [](const Group& group) {
    EXPECT_THAT(message_of<UsageError>([&] { train_with_branch_on_rank_0(group, group); }),
                AllOf(HasSubstr("this rank called all_reduce"), HasSubstr("mean of 32"),
                      HasSubstr("sum of 8")));
  });
  run_rank_threads(2, [](const Group& group) {
    EXPECT_NO_THROW(train_with_branch_on_rank_0(group, group->split({0, 1})));
  });
}

TEST(SyncBatchNormTraining, RanksWithoutBatchesAreReported) {
  run_rank_threads(2, [](const Group& group) {
    torch::nn::Sequential net = make_net();
    convert_sync_batchnorm(net, group);
    DistributedDataParallel model(net, group);
    const auto train = [&] {
      for (int step = 0; step < 1 + group->rank(); ++step) {
        loss_of(model(part(batch(step), group->rank(), 2))).backward();
      }
    };
    EXPECT_THAT(message_of<UsageError>([&] { join(model, train); }),
                AllOf(HasSubstr("all_gather"), HasSubstr("1 Int"), HasSubstr("9 Double")));
  });
}

}  // namespace
}  // namespace lockstep::testing
