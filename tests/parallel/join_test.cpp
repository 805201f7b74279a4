// SPDX-License-Identifier: BSD-3-Clause
// Ranks with different numbers of batches train together.
#include "lockstep/parallel/join.h"

#include <algorithm>

#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

at::Tensor batch_of(int rank, int step) {
  return values({4, 6}, 10 * rank + step);
}

// What the ranks' steps amount to: in step i each rank with more than i batches contributes its
// gradient, and the sum is divided by the number of all ranks.
void train_alone(Mlp& net, torch::optim::Optimizer& optimizer, const std::vector<int>& batches) {
  const int ranks = static_cast<int>(batches.size());
  for (int step = 0; step < *std::max_element(batches.begin(), batches.end()); ++step) {
    zero_gradients(*net);
    for (int rank = 0; rank < ranks; ++rank) {
      if (step >= batches[static_cast<std::size_t>(rank)]) continue;
      (net->forward(batch_of(rank, step)).square().mean() / ranks).backward();
    }
    optimizer.step();
  }
}

// Trains twice, so that the state of the optimizers counts as well.
void expect_joint_training(const std::vector<int>& batches,
                           const DistributedDataParallelOptions& options) {
  run_rank_threads(static_cast<int>(batches.size()), [&](std::shared_ptr<ProcessGroup> group) {
    Mlp net;
    set_weights(*net, 1);
    Mlp alone;
    copy_state(*alone, *net);
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    torch::optim::Adam optimizer_alone(alone->parameters(), 0.01);
    auto model = DistributedDataParallel(net, group, options);
    std::vector<int> counts = batches;
    for (int round = 0; round < 2; ++round) {
      const int own = counts[static_cast<std::size_t>(group->rank())];
      join(
          model,
          [&] {
            for (int step = 0; step < own; ++step) {
              zero_gradients(*net);
              model(batch_of(group->rank(), step)).square().mean().backward();
              optimizer.step();
            }
          },
          [&] { optimizer.step(); });
      expect_same_state(*net, *group);
      train_alone(alone, optimizer_alone, counts);
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        expect_close(net->parameters()[i], alone->parameters()[i], "parameter");
      }
      std::reverse(counts.begin(), counts.end());
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
        model(values({8, 6}, 10 * group->rank() + step)).square().sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    expect_same_state(*net, *group);
    EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 4);
    // No gradients are left of the steps that were followed.
    NormedNet alone;
    copy_state(*alone, *net);
    model(values({8, 6})).square().sum().backward();
    alone(values({8, 6})).square().sum().backward();
    expect_same_gradients(*net, *alone);
  });
}

TEST(Join, AccumulationIsFollowedAtItsEnd) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    set_weights(*net, 1);
    Mlp alone;
    copy_state(*alone, *net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    torch::optim::SGD optimizer_alone(alone->parameters(), 0.1);
    auto model = DistributedDataParallel(net, group);
    join(model, [&] {
      for (int part = 0; part < 4 * (1 + group->rank()); ++part) {
        const auto guard = model->no_sync(part % 4 != 3);
        model(batch_of(group->rank(), part)).square().mean().backward();
        if (part % 4 != 3) continue;
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    for (int part = 0; part < 8; ++part) {
      for (int rank = part < 4 ? 0 : 1; rank < 2; ++rank) {
        (alone(batch_of(rank, part)).square().mean() / 2).backward();
      }
      if (part % 4 != 3) continue;
      optimizer_alone.step();
      optimizer_alone.zero_grad();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      expect_close(net->parameters()[i], alone->parameters()[i], "parameter");
    }
  });
}

TEST(Join, CommunicationHooksAreFollowed) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    auto model = DistributedDataParallel(net, group, kManyBuckets);
    int buckets = 0;
    model->register_comm_hook([&](GradBucket& bucket) {
      ++buckets;
      return group->all_reduce(bucket.buffer(), {.op = ReduceOp::mean});
    });
    join(model, [&] {
      if (group->rank() == 1) model(batch_of(0, 0)).sum().backward();
    });
    EXPECT_EQ(buckets, 6);
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
    EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2: ended with an exception: no more disk"));
  }
}

TEST(Join, AnExceptionOfAnyTypeEndsTheGroup) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    auto model = DistributedDataParallel(net, group);
    try {
      join(model, [&] {
        if (group->rank() == 0) throw 7;
        model(values({4, 6})).sum().backward();
      });
      ADD_FAILURE() << "rank " << group->rank() << " went on";
    } catch (int) {
      EXPECT_EQ(group->rank(), 0);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 of 2: ended with an exception"));
    }
  });
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
