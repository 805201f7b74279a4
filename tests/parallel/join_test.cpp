// SPDX-License-Identifier: BSD-3-Clause
// Ranks with different numbers of batches train together.
#include "lockstep/parallel/join.h"

#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/finite_gradients.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    linear = register_module("linear", torch::nn::Linear(6, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(NormedNet);

// The same bits on every rank.
void expect_same_state(const torch::nn::Module& module, ProcessGroup& group) {
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      std::vector<at::Tensor> all;
      for (int i = 0; i < group.size(); ++i) all.push_back(torch::empty_like(tensor.detach()));
      group.all_gather(all, tensor.detach()).wait();
      for (const at::Tensor& other : all) EXPECT_TRUE(torch::equal(other, all.front()));
    }
  }
}

// What the ranks' steps amount to: in step i each rank with more than i batches contributes its
// gradient, and the sum is divided by the number of all ranks.
Mlp train_alone(const Mlp& start, const std::vector<int>& batches) {
  Mlp net;
  copy_state(*net, *start);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  const int ranks = static_cast<int>(batches.size());
  for (int step = 0; step < *std::max_element(batches.begin(), batches.end()); ++step) {
    zero_gradients(*net);
    for (int rank = 0; rank < ranks; ++rank) {
      if (step >= batches[static_cast<std::size_t>(rank)]) continue;
      (net->forward(values({4, 6}, 10 * rank + step)).square().mean() / ranks).backward();
    }
    optimizer.step();
  }
  return net;
}

void expect_joint_training(const std::vector<int>& batches,
                           const DistributedDataParallelOptions& options) {
  run_rank_threads(static_cast<int>(batches.size()), [&](std::shared_ptr<ProcessGroup> group) {
    Mlp net;
    set_weights(*net, 1);
    Mlp start;
    copy_state(*start, *net);
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    auto model = DistributedDataParallel(net, group, options);
    const auto own = batches[static_cast<std::size_t>(group->rank())];
    join(
        model,
        [&] {
          for (int step = 0; step < own; ++step) {
            zero_gradients(*net);
            model(values({4, 6}, 10 * group->rank() + step)).square().mean().backward();
            optimizer.step();
          }
        },
        [&] { optimizer.step(); });
    expect_same_state(*net, *group);
    const Mlp expected = train_alone(start, batches);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      expect_close(net->parameters()[i], expected->parameters()[i], "parameter");
    }
  });
}

TEST(Join, RanksWithoutBatchesFollowTheOthers) {
  for (const auto& options : {kOneBucket, kManyBuckets}) {
    expect_joint_training({3, 3}, options);
    expect_joint_training({2, 5}, options);
    expect_joint_training({5, 2, 3}, options);
    expect_joint_training({0, 4}, options);  // rank 0 never sees the order of the gradients
    expect_joint_training({0, 0}, options);
    expect_joint_training({6}, options);
  }
}

TEST(Join, WithoutAFollowerTheLastRanksStateCounts) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    NormedNet net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto model = DistributedDataParallel(net, group);
    const int own = 2 + group->rank();
    join(model, [&] {
      for (int step = 0; step < own; ++step) {
        optimizer.zero_grad();
        model(values({8, 6}, 10 * group->rank() + step)).square().sum().backward();
        optimizer.step();
      }
    });
    expect_same_state(*net, *group);
    EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 4);
    // Afterwards the model trains as before.
    model(values({8, 6}, group->rank())).square().sum().backward();
    EXPECT_TRUE(net->linear->weight.grad().defined());
  });
}

TEST(Join, AccumulationIsFollowedAtItsEnd) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    set_weights(*net, 1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto model = DistributedDataParallel(net, group);
    join(model, [&] {
      for (int part = 0; part < 4 * (1 + group->rank()); ++part) {
        const auto guard = model->no_sync(part % 4 != 3);
        model(values({4, 6}, 10 * group->rank() + part)).square().mean().backward();
        if (part % 4 != 3) continue;
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    expect_same_state(*net, *group);
  });
}

TEST(Join, ANonFiniteGradientIsSkippedByAll) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto model = DistributedDataParallel(net, group, {.check_finite = true});
    int skipped = 0;
    int followed = 0;
    join(
        model,
        [&] {
          for (int step = 0; step < 3 * group->rank(); ++step) {
            optimizer.zero_grad();
            try {
              (model(values({4, 6})).sum() * (step == 1 ? NAN : 1)).backward();
              optimizer.step();
            } catch (const NonFiniteGradient&) {
              ++skipped;
            }
          }
        },
        [&] {
          ++followed;
          optimizer.step();
        });
    EXPECT_EQ(skipped, group->rank());
    EXPECT_EQ(followed, group->rank() == 0 ? 2 : 0);
    expect_same_state(*net, *group);
  });
}

TEST(Join, AnExceptionInALoopEndsTheGroup) {
  try {
    run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net;
      auto model = DistributedDataParallel(net, group);
      const auto loop = [&] {
        if (group->rank() == 1) throw std::runtime_error("no more disk");
        model(values({4, 6})).sum().backward();
      };
      if (group->rank() == 1) {
        EXPECT_THROW(join(model, loop), std::runtime_error);
        return;
      }
      join(model, loop);
    });
    FAIL() << "rank 0 went on";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 has ended with an exception: no more disk"));
  }
}

TEST(Join, LoopsThatMakeOtherCallsAreErrors) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    NormedNet net;
    auto model = DistributedDataParallel(net, group);
    try {
      join(model, [&] {
        const at::Tensor loss = model(values({8, 6})).square().sum();
        if (group->rank() == 0) {
          model(values({8, 6}));
        } else {
          loss.backward();
        }
      });
      ADD_FAILURE() << "rank " << group->rank() << " went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("rank 0 runs a forward of the model while rank 1 runs a"));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
