// SPDX-License-Identifier: BSD-3-Clause
// Ranks whose loops are in different steps get an error, and others do not.
#include <functional>
#include <set>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/misuse_checks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UpdateCount, DifferentCountsGetDifferentCodesSoon) {
  UpdateCount count;
  count.set(1000, false);  // before the first reduction
  EXPECT_EQ(count.code(), 0);
  std::set<int> codes;
  for (int changes = 1000; changes < 1040; ++changes) {
    count.set(changes, false);
    EXPECT_GE(count.code(), 0);
    EXPECT_LT(count.code(), kUpdateCodes);
    codes.insert(count.code());
  }
  EXPECT_EQ(codes.size(), static_cast<std::size_t>(kUpdateCodes));
}

// Each rank's line search looks at its own loss.
void search_by_own_losses(const std::shared_ptr<ProcessGroup>& group) {
  torch::nn::Sequential net{torch::nn::Linear(2, 1)};
  set_weights(*net, 1);
  DistributedDataParallel model(net, group);
  torch::optim::LBFGS optimizer(net->parameters(),
                                torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"));
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = values({8, 2}, 10 * step + group->rank());
    optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor loss = torch::mse_loss(model(x), x.square().sum(1, true));
      loss.backward();
      return loss;
    });
  }
}

TEST(UpdateCount, ClosuresThatRanksCallDifferentlyOftenAreNamed) {
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      if (ranks == 1) {
        EXPECT_NO_THROW(search_by_own_losses(group));
        return;
      }
      EXPECT_THAT(message_of<UsageError>([&] { search_by_own_losses(group); }),
                  AllOf(HasSubstr("the ranks are in different steps"),
                        HasSubstr("in-place changes on this rank and"), HasSubstr("LBFGS")));
    });
  }
}

TEST(UpdateCount, OverEachBackend) {
  for (const char* const backend : {"shm", "gloo"}) {
    run_ranks(2, [&](Rank& rank) {
      const auto group = init_process_group({.backend = backend,
                                             .init_method = rank.rendezvous_url(),
                                             .rank = rank.rank(),
                                             .world_size = rank.size(),
                                             .device = at::kCPU});
      EXPECT_THAT(message_of<UsageError>([&] { search_by_own_losses(group); }),
                  HasSubstr("the ranks are in different steps"));
    });
  }
}

// Six steps, which `step` ends.
template <class Optimizer>
void train_with_steps(const std::shared_ptr<ProcessGroup>& group, Mlp& net,
                      DistributedDataParallel<Mlp>& model,
                      const std::function<void(torch::optim::Optimizer&)>& step) {
  Optimizer optimizer(net->parameters(), 0.1);
  for (int i = 0; i < 6; ++i) {
    optimizer.zero_grad();
    model(values({4, 6}, group->rank() + 10 * i)).mean().backward();
    step(optimizer);
  }
}

template <class Optimizer>
void skip_a_step_on_one_rank() {
  for (const auto& options : {kOneBucket, kManyBuckets}) {
    run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net;
      DistributedDataParallel model(net, group, options);
      EXPECT_THAT(message_of<UsageError>([&] {
                    train_with_steps<Optimizer>(group, net, model,
                                                [&](torch::optim::Optimizer& optimizer) {
                                                  if (group->rank() != 1) optimizer.step();
                                                });
                  }),
                  HasSubstr("Skip a step on all ranks or on none"));
      group->barrier().wait();  // the group is usable
    });
  }
}

TEST(UpdateCount, AStepThatOneRankSkipsIsNamed) {
  skip_a_step_on_one_rank<torch::optim::Adam>();
  skip_a_step_on_one_rank<torch::optim::SGD>();
}

// To evaluate averaged weights, for example.
TEST(UpdateCount, ParametersThatOneRankChangesAndChangesBackAreNoError) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const auto step = [&](torch::optim::Optimizer& optimizer) {
      optimizer.step();
      if (group->rank() == 1) return;
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) {
        const at::Tensor own = parameter.clone();
        parameter.zero_();
        parameter.copy_(own);
      }
    };
    EXPECT_NO_THROW(train_with_steps<torch::optim::Adam>(group, net, model, step));
  });
}

}  // namespace
}  // namespace lockstep::testing
