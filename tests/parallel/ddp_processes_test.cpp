// SPDX-License-Identifier: BSD-3-Clause
// DistributedDataParallel over shared memory, with ranks as processes.
#include <cstdlib>

#include "support/rank_processes.h"
#include "tests/parallel/models.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<ProcessGroup> join(Rank& rank,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  return init_process_group({.backend = "shm",
                             .init_method = rank.rendezvous_url(),
                             .rank = rank.rank(),
                             .world_size = rank.size(),
                             .timeout = timeout,
                             .device = at::kCPU});
}

void train_beside_a_single_process(int ranks, const DistributedDataParallelOptions& options) {
  run_ranks(ranks, [&](Rank& rank) {
    const auto group = join(rank);
    torch::manual_seed(rank.rank());  // other weights on each rank, until the model is wrapped
    Mlp net;
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    DistributedDataParallel model(net, group, options);
    Mlp reference;
    copy_state(*reference, *net);
    torch::optim::Adam reference_optimizer(reference->parameters(), 0.01);
    const at::Tensor batch = values({12, 6});
    const at::Tensor mine = part(batch, rank.rank(), ranks);
    for (int step = 0; step < 20; ++step) {
      if (step % 2) {
        zero_gradients(*net);
      } else {
        reset_gradients(*net);
      }
      reset_gradients(*reference);
      model(mine).square().mean().backward();
      reference->forward(batch).square().mean().backward();
      expect_same_gradients(*net, *reference);
      optimizer.step();
      reference_optimizer.step();
    }
    // The ranks have the same bits.
    for (const at::Tensor& parameter : net->parameters()) {
      std::vector<at::Tensor> all(static_cast<std::size_t>(ranks));
      for (at::Tensor& tensor : all) tensor = torch::empty_like(parameter);
      group->all_gather(all, parameter.detach()).wait();
      for (const at::Tensor& other : all) EXPECT_TRUE(torch::equal(other, all.front()));
    }
  });
}

TEST(DdpProcesses, TrainsAsOneProcessDoes) {
  train_beside_a_single_process(2, {});
  train_beside_a_single_process(3, {.bucket_cap_mb = 0, .first_bucket_mb = 0});
}

TEST(DdpProcesses, SeedsGiveTheSameWeightsAndOtherDraws) {
  std::vector<std::string> drawn;
  for (const RankOutcome& outcome : run_ranks(2, [](Rank& rank) {
         const auto group = join(rank);
         seed_everything(7, group);
         Mlp net;
         const DistributedDataParallel model(net, group);
         rank.report(fmt::format("{} {}", net->hidden->weight.sum().item<float>(),
                                 torch::rand({1}).item<float>()));
       })) {
    drawn.push_back(outcome.result);
  }
  const auto weights = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  EXPECT_EQ(weights(drawn[0]), weights(drawn[1]));
  EXPECT_NE(drawn[0], drawn[1]);
}

TEST(DdpProcesses, UnusedParametersAndNoSync) {
  run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    torch::nn::Linear both(2, 2);
    torch::nn::Linear never(2, 2);
    torch::nn::Linear first_rank(2, 2);
    std::vector<NamedTensor> parameters{
        {"both", both->weight}, {"never", never->weight}, {"first_rank", first_rank->weight}};
    Reducer reducer(parameters, group, {.bucket_cap_mb = 0, .first_bucket_mb = 0});
    for (int step = 0; step < 5; ++step) {
      for (auto& named : parameters) named.tensor.mutable_grad().reset();
      const auto loss = [&] {
        at::Tensor sum = both->weight.sum() * (rank.rank() + 1);
        if (rank.rank() == 0) sum = sum + first_rank->weight.sum();
        return reducer.prepare(sum);
      };
      {
        const NoSync guard = reducer.no_sync();
        loss().backward();
      }
      loss().backward();
      expect_close(both->weight.grad(), torch::full({2, 2}, 4.), "both");
      expect_close(first_rank->weight.grad(), torch::full({2, 2}, 2. / 3), "first_rank");
      EXPECT_FALSE(never->weight.grad().defined());
      EXPECT_THAT(reducer.unused_parameters(), ::testing::ElementsAre("never"));
    }
  });
}

// One rank of three is in the middle of a backward, the first one or a later one, when something
// happens to it. The others are to fail with such an error that names it.
std::vector<RankOutcome> train_until(int victim, int steps_before,
                                     const std::function<void(Rank&)>& happens,
                                     LaunchOptions options, const std::string& error_type,
                                     std::chrono::seconds timeout = std::chrono::seconds(30)) {
  options.errors_are_outcomes = true;
  const int ranks = 3;
  auto outcomes = run_ranks(
      ranks,
      [&](Rank& rank) {
        const auto group = join(rank, timeout);
        Mlp net;
        DistributedDataParallel model(net, group);
        for (int step = 0; step < steps_before; ++step) model(values({2, 6})).sum().backward();
        const at::Tensor x = values({2, 6}).requires_grad_();
        const at::Tensor loss = model(x).sum();
        // The gradient of the input comes last: by then the others wait for this rank's.
        if (rank.rank() == victim) {
          x.register_hook([&](const at::Tensor&) { happens(rank); });
        }
        loss.backward();
      },
      options);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(outcomes[rank].error_type, error_type);
    EXPECT_THAT(outcomes[rank].error, AllOf(HasSubstr("reducing gradients"),
                                            HasSubstr("rank " + std::to_string(victim))));
  }
  return outcomes;
}

void await_signal_in_backward(Rank& rank) {
  rank.cue("in backward");
  rank.await_signal();
}

LaunchOptions signal_in_backward(int victim, int signal) {
  return {.signals = {{.rank = victim, .cue = "in backward", .signal = signal}}};
}

TEST(DdpProcesses, ADeathInBackwardEndsTheOthers) {
  for (const auto& [victim, steps_before, signal] :
       {std::tuple(1, 2, SIGKILL), std::tuple(2, 2, SIGABRT), std::tuple(0, 0, SIGKILL)}) {
    const auto outcomes = train_until(victim, steps_before, await_signal_in_backward,
                                      signal_in_backward(victim, signal), "PeerLost");
    EXPECT_EQ(outcomes[(victim + 1) % 3].lost_rank, victim);
  }
}

TEST(DdpProcesses, AnExitInBackwardEndsTheOthers) {
  const auto outcomes = train_until(
      1, 2, [](Rank&) { std::exit(3); }, {.may_exit = {1}}, "PeerLost");
  EXPECT_EQ(outcomes[1].exit_code, 3);
  EXPECT_EQ(outcomes[0].lost_rank, 1);
}

TEST(DdpProcesses, AStopInBackwardIsATimeoutThatNamesIt) {
  for (const auto& [victim, steps_before] : {std::pair(1, 2), std::pair(0, 0)}) {
    train_until(victim, steps_before, await_signal_in_backward, signal_in_backward(victim, SIGSTOP),
                "TimeoutError", std::chrono::seconds(5));
  }
}

// Sanitizers hold memory of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Returns the memory that this process holds now, with what the ranks share.
std::int64_t held_memory() {
  reset_peak_memory();
  return peak_memory();
}

TEST(DdpProcesses, ARankHoldsItsParametersAndItsBucketsAndNoFurtherCopy) {
  run_ranks(2, [](Rank& rank) {
    const auto group = join(rank);
    const auto train = [](auto& net, auto& model, int width, bool set_to_none) {
      for (int step = 0; step < 3; ++step) {
        set_to_none ? reset_gradients(*net) : zero_gradients(*net);
        model(torch::ones({1, width})).sum().backward();
      }
    };
    // What libtorch and the group need whatever the model.
    Mlp small;
    DistributedDataParallel first(small, group);
    train(small, first, 6, false);
    const std::int64_t before = held_memory();

    constexpr int kWidth = 3000;
    constexpr std::int64_t kParameters = 4 * kWidth * (kWidth + 1) * 4;
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
    DistributedDataParallel model(net, group);
    for (const bool set_to_none : {false, true}) {
      train(net, model, kWidth, set_to_none);
      group->barrier().wait();
      const std::int64_t held = held_memory() - before;
      EXPECT_GT(held, 1.95 * kParameters) << set_to_none;
      EXPECT_LT(held, 2.15 * kParameters) << set_to_none;
      // What a peer unmaps would count as this rank's.
      group->barrier().wait();
    }
  });
}
#endif

TEST(DdpProcesses, ADifferentModelIsNamedOnEveryRank) {
  const auto outcomes = run_ranks(2,
                                  [](Rank& rank) {
                                    const auto group = join(rank);
                                    torch::nn::Linear net(3, rank.rank() + 1);
                                    DistributedDataParallel model(net, group);
                                  },
                                  {.errors_are_outcomes = true});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error_type, "UsageError");
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("rank 0 has parameter weight: Float [1, 3]"),
                                     HasSubstr("rank 1 has parameter weight: Float [2, 3]")));
  }
}

TEST(DdpProcesses, AnExceptionInBackwardEndsEveryRank) {
  const auto outcomes = run_ranks(
      2,
      [](Rank& rank) {
        const auto group = join(rank);
        Mlp net;
        DistributedDataParallel model(net, group);
        model(values({2, 6})).sum().backward();
        const at::Tensor x = values({2, 6}).requires_grad_();
        const at::Tensor loss = model(x).sum();
        if (rank.rank() == 1) {
          x.register_hook([](const at::Tensor&) { throw std::out_of_range("the user's mistake"); });
        }
        loss.backward();
      },
      {.errors_are_outcomes = true});
  EXPECT_THAT(outcomes[0].error, HasSubstr("backward ended with an exception"));
  EXPECT_THAT(outcomes[1].error, HasSubstr("the user's mistake"));
}

TEST(DdpProcesses, ARankMayEvaluateAloneAndGroupAndModelGoInAnyOrder) {
  run_ranks(2, [](Rank& rank) {
    auto group = join(rank);
    auto net = std::make_shared<torch::nn::BatchNorm1dImpl>(6);
    auto model = std::make_unique<DistributedDataParallel<torch::nn::BatchNorm1dImpl>>(net, group);
    (*model)(values({4, 6}, rank.rank())).square().sum().backward();
    if (rank.rank() == 0) {
      (*model)->eval();
      EXPECT_EQ((*model)(values({4, 6})).size(0), 4);
      group.reset();
      model.reset();
    } else {
      model.reset();
      group.reset();
    }
    EXPECT_TRUE(torch::isfinite(net->weight.grad()).all().item<bool>());  // outlives both
  });
}

}  // namespace
}  // namespace lockstep::testing
