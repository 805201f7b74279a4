// SPDX-License-Identifier: BSD-3-Clause
// Backwards that reach parameters around the wrapper's outputs: reduced after a synchronized
// forward, else on this rank only, and an error if the parameters are updated with that.
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/captured_warnings.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/join.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor input_of(int rank, int step) {
  return values({4, 6}, 10 * step + rank);
}

// As in WGAN-GP; its graph does not contain the output's node.
template <class Model>
at::Tensor gradient_penalty(Model& model, const at::Tensor& input) {
  const at::Tensor x = input.clone().requires_grad_();
  const at::Tensor slope = torch::autograd::grad({model(x).sum()}, {x}, {}, true, true)[0];
  return (slope.norm(2, 1) - 1).square().mean();
}

void update(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
  }
}

void expect_same_parameters(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  const auto wanted = expected.named_parameters();
  for (const auto& item : actual.named_parameters()) {
    expect_close(item.value(), wanted[item.key()], item.key());
  }
}

// Trains beside one process that computes the ranks' mean loss. `backwards` runs the backwards of a
// step, and `loss` is their sum for one rank.
void train(
    int ranks, const DistributedDataParallelOptions& options,
    const std::function<void(DistributedDataParallel<Mlp>&, const at::Tensor&, int)>& backwards,
    const std::function<at::Tensor(Mlp&, const at::Tensor&, int)>& loss) {
  run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const CapturedWarnings warnings;
    Mlp net;
    set_weights(*net, 1);
    Mlp reference;
    copy_state(*reference, *net);
    DistributedDataParallel model(net, group, options);
    for (int step = 0; step < 4; ++step) {
      for (Mlp* each : {&net, &reference}) {
        (step < 2 ? reset_gradients : zero_gradients)(**each);
      }
      backwards(model, input_of(group->rank(), step), step);
      for (int rank = 0; rank < ranks; ++rank) {
        (loss(reference, input_of(rank, step), step) / ranks).backward();
      }
      expect_same_gradients(*net, *reference);
      update(*net);
      update(*reference);
    }
    expect_same_parameters(*net, *reference);
    EXPECT_THAT(warnings.messages(), IsEmpty());
  });
}

TEST(BypassingGradients, OfAPenaltyInABackwardOfItsOwn) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto& options : {kOneBucket, kManyBuckets}) {
      train(
          ranks, options,
          [](auto& model, const at::Tensor& x, int) {
            model(x).mean().backward();
            gradient_penalty(model, x).backward();
          },
          [](Mlp& net, const at::Tensor& x, int) {
            return net(x).mean() + gradient_penalty(net, x);
          });
    }
  }
}

// R1 is often computed every sixteenth step, and may be the first.
TEST(BypassingGradients, OfAPenaltyInSomeSteps) {
  for (const int first : {0, 1}) {
    train(
        2, kManyBuckets,
        [&](auto& model, const at::Tensor& x, int step) {
          if (step % 2 == first) return gradient_penalty(model, x).backward();
          model(x).mean().backward();
        },
        [&](Mlp& net, const at::Tensor& x, int step) {
          return step % 2 == first ? gradient_penalty(net, x) : net(x).mean();
        });
  }
}

TEST(BypassingGradients, OfAForwardOfTheModuleItself) {
  train(
      2, kOneBucket,
      [](auto& model, const at::Tensor& x, int) {
        model(x).mean().backward();
        model->module()->forward(x).square().mean().backward();
      },
      [](Mlp& net, const at::Tensor& x, int) { return net(x).mean() + net(x).square().mean(); });
}

TEST(BypassingGradients, OfALossThatTheModuleKeeps) {
  train(
      2, kManyBuckets,
      [](auto& model, const at::Tensor& x, int) {
        const at::Tensor output = model(x);
        // Here it comes before the backward that enters through the output.
        model->module()->hidden(x).square().mean().backward();
        output.mean().backward();
      },
      [](Mlp& net, const at::Tensor& x, int) {
        return net(x).mean() + net->hidden(x).square().mean();
      });
}

TEST(BypassingGradients, AreReducedByTheCommHook) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    int buckets = 0;
    model->register_comm_hook([&](GradBucket& bucket) {
      ++buckets;
      return group->all_reduce(bucket.buffer(), ReduceOp::mean);
    });
    model(input_of(group->rank(), 0)).mean().backward();
    (net->last->bias.sum() * (1 + group->rank())).backward();
    EXPECT_EQ(buckets, 2);
  });
}

// The generator's step: the discriminator's gradients are not wanted.
TEST(BypassingGradients, StayOnTheirRankInAStepWithoutAForwardOfTheWrapper) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const CapturedWarnings warnings;
    Mlp net;
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      reset_gradients(*net);
      model(input_of(group->rank(), step)).mean().backward();
      optimizer.step();
      const auto before = group->calls_made();
      for (int i = 0; i < 2; ++i) {
        model->module()->forward(input_of(group->rank(), 3)).mean().backward();
      }
      EXPECT_EQ(group->calls_made(), before);
    }
    EXPECT_THAT(warnings.messages(), IsEmpty());
  });
}

TEST(BypassingGradients, StayOnTheirRankUnderNoSync) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor x = input_of(group->rank(), 0);
    model(x).mean().backward();
    for (int step = 0; step < 2; ++step) {
      const auto before = group->calls_made();
      at::Tensor output;
      {
        const NoSync guard = model->no_sync();
        net->forward(x).mean().backward();
        output = model(x);
      }
      output.mean().backward();
      update(*net);  // as in local SGD
      EXPECT_EQ(group->calls_made(), before);
    }
    EXPECT_NO_THROW(model(x).mean().backward());
  });
}

TEST(BypassingGradients, OfOneRankAreNoErrorInAnUpdate) {
  run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, {.check_finite = true});
    for (int step = 0; step < 3; ++step) {
      net->forward(input_of(0, step)).mean().backward();
      update(*net);
    }
    EXPECT_NO_THROW(model(input_of(0, 0)));
  });
}

// As in the second step of SAM, or if the wrapper is never called.
TEST(BypassingGradients, AreAnErrorOnceTheParametersAreUpdated) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto step_with_sgd = [](torch::nn::Module& net) {
      torch::optim::SGD(net.parameters(), 0.1).step();
    };
    for (const auto& step : {std::function<void(torch::nn::Module&)>(update),
                             std::function<void(torch::nn::Module&)>(step_with_sgd)}) {
      for (const bool calls_the_wrapper : {true, false}) {
        Mlp net;
        DistributedDataParallel model(net, group);
        const at::Tensor x = input_of(group->rank(), 0);
        if (calls_the_wrapper) model(x).mean().backward();
        update(*net);
        reset_gradients(*net);
        EXPECT_NO_THROW(net->forward(x).mean().backward());
        step(*net);
        reset_gradients(*net);
        EXPECT_THAT(
            message_of<UsageError>([&] {
              if (calls_the_wrapper) model(x);
              net->forward(x).mean().backward();
            }),
            AllOf(HasSubstr("parameter "), HasSubstr("computed its gradient on this rank only"),
                  HasSubstr("no_sync()")));
      }
    }
  });
}

// torch::optim::SGD changes data(), which autograd does not count, and the padding row, which comes
// first in memory, has no gradient.
TEST(BypassingGradients, AreAnErrorWhicheverValuesTheUpdateChanges) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(10, 16).padding_idx(0));
    set_weights(*net, 1);
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const at::Tensor x = torch::tensor({1 + group->rank(), 3});
    net->forward(x).mean().backward();
    optimizer.step();
    EXPECT_THAT(message_of<UsageError>([&] { model(x); }),
                HasSubstr("parameter weight has changed after a backward"));
  });
}

// Clamping that changes nothing, as between two steps of WGAN's critic.
TEST(BypassingGradients, AreNoErrorIfTheValuesStay) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    net->forward(input_of(group->rank(), 0)).mean().backward();
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.clamp_(-100, 100);
    }
    EXPECT_NO_THROW(model(input_of(group->rank(), 1)));
  });
}

// SAM, with the perturbation of each rank's own gradient: ranks differ when they reduce.
TEST(BypassingGradients, UnderNoSyncMayMoveEachRanksParameters) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 5; ++step) {
      const at::Tensor x = input_of(group->rank(), step);
      reset_gradients(*net);
      {
        const NoSync guard = model->no_sync();
        model(x).mean().backward();
      }
      std::vector<at::Tensor> before;
      for (const at::Tensor& parameter : net->parameters()) before.push_back(parameter.clone());
      update(*net);
      reset_gradients(*net);
      model(x).mean().backward();
      for (std::size_t i = 0; i < before.size(); ++i) {
        net->parameters()[i].detach().copy_(before[i]);
      }
      update(*net);
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor first = parameter.detach().clone();
      group->broadcast(first, 0).wait();
      EXPECT_TRUE(torch::equal(parameter, first));
    }
  });
}

TEST(BypassingGradients, OfCreateGraphAreNamed) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor x = input_of(group->rank(), 0);
    const at::Tensor penalty = gradient_penalty(model, x);
    EXPECT_THAT(message_of<UsageError>([&] { penalty.backward({}, true, true); }),
                AllOf(HasSubstr("create_graph=true is not supported"),
                      HasSubstr("torch::autograd::grad(..., create_graph=true)")));
    EXPECT_FALSE(net->hidden->weight.grad().defined());
    penalty.backward();
  });
}

TEST(BypassingGradients, OfALayerThatAnotherWrapperReduces) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear shared(6, 4);
    torch::nn::Sequential one(shared, torch::nn::Linear(4, 1));
    torch::nn::Sequential two(shared, torch::nn::Linear(4, 2));
    DistributedDataParallel first(one, group);
    DistributedDataParallel second(two, group);
    const auto gradient_of = [&](torch::nn::Sequential& net, int step) {
      const at::Tensor mean =
          (net->forward(input_of(0, step)).sum() + net->forward(input_of(1, step)).sum()) / 2;
      return torch::autograd::grad({mean}, {shared->weight})[0];
    };
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = input_of(group->rank(), step);
      const at::Tensor expected = gradient_of(one, step) + gradient_of(two, step);
      for (auto* net : {&one, &two}) reset_gradients(**net);
      if (step == 1) {
        const at::Tensor a = first(x).sum(), b = second(x).sum();
        a.backward();
        b.backward();
      } else {
        first(x).sum().backward();
        second(x).sum().backward();
      }
      expect_close(shared->weight.grad(), expected, "shared weight");
      update(*shared);
      reset_gradients(*one);
      first(x).sum().backward();  // the second wrapper has no part in this step
      update(*shared);
    }
  });
}

TEST(BypassingGradients, OfABackwardThatThrowsOnOneRankReachEveryRank) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor x = input_of(group->rank(), 0);
    model(x);
    // The last layer has its gradients when the exception is thrown.
    const at::Tensor hidden = net->middle(net->hidden(x));
    const auto loss = [&](bool breaks) {
      return net->last(breaks ? ThrowsInBackward::apply(hidden) : hidden).sum();
    };
    if (group->rank() == 1) {
      EXPECT_THROW(loss(true).backward(), std::out_of_range);
    } else {
      EXPECT_THAT(message_of<PeerLost>([&] { loss(false).backward(); }),
                  AllOf(HasSubstr("rank 1"), HasSubstr("backward ended with an exception")));
    }
  });
}

// Ranks without batches left follow whole steps.
TEST(BypassingGradients, WithinJoinAreNotReducedByThemselves) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto run = [&](bool penalty_first) {
      Mlp net;
      DistributedDataParallel model(net, group);
      lockstep::join(model, [&] {
        for (int step = 0; step < 2; ++step) {
          reset_gradients(*net);
          const at::Tensor output = model(input_of(group->rank(), step));
          const at::Tensor penalty = net->last->bias.sum() * (1 + group->rank());
          if (penalty_first) penalty.backward();
          output.mean().backward();
          if (!penalty_first) penalty.backward();
          update(*net);
        }
      });
    };
    EXPECT_NO_THROW(run(true));
    EXPECT_THAT(message_of<Error>([&] { run(false); }),
                HasSubstr("computed its gradient on this rank only"));
  });
}

// Over real transports, with buckets that are reduced while backward runs.
TEST(BypassingGradients, OverEachBackend) {
  for (const char* const backend : {"shm", "gloo"}) {
    for (const int ranks : {2, 3}) {
      run_ranks(ranks, [&](Rank& rank) {
        const auto group = init_process_group({.backend = backend,
                                               .init_method = rank.rendezvous_url(),
                                               .rank = rank.rank(),
                                               .world_size = rank.size(),
                                               .device = at::kCPU});
        Mlp net;
        DistributedDataParallel model(net, group, kManyBuckets);
        for (int step = 0; step < 4; ++step) {
          reset_gradients(*net);
          const at::Tensor x = input_of(rank.rank(), step);
          model(x).mean().backward();
          gradient_penalty(model, x).backward();
          update(*net);
        }
        for (const at::Tensor& parameter : net->parameters()) {
          const at::Tensor first = parameter.detach().clone();
          group->broadcast(first, 0).wait();
          EXPECT_TRUE(torch::equal(parameter, first));
        }
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
