// SPDX-License-Identifier: BSD-3-Clause
// What the wrapper warns of, once: uses that train something else than their user expects.
#include "tests/parallel/models.h"
#include "tests/support/captured_warnings.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/train/seed.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MisuseWarnings, ForwardOfTheWrappedModule) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const CapturedWarnings warnings;
    Mlp net;
    auto model = DistributedDataParallel(net, group);
    const at::Tensor input = values({4, 6});
    for (int step = 0; step < 2; ++step) model(input).sum().backward();
    torch::autograd::grad({net(input.clone().requires_grad_()).sum()}, {net->last->weight});
    EXPECT_THAT(warnings.messages(), IsEmpty());
    for (int step = 0; step < 2; ++step) model->module()->forward(input).sum().backward();
    EXPECT_THAT(warnings.messages(),
                ElementsAre(AllOf(HasSubstr(" of 2: a backward accumulated a gradient"),
                                  HasSubstr("Call the wrapper, not module()->forward"))));
  });
}

TEST(MisuseWarnings, NotOfBackwardsUnderNoSync) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const CapturedWarnings warnings;
    Mlp net;
    auto model = DistributedDataParallel(net, group);
    for (int part = 0; part < 4; ++part) {
      const auto guard = model->no_sync(part % 2 == 0);
      model(values({4, 6})).sum().backward();
    }
    EXPECT_THAT(warnings.messages(), IsEmpty());
  });
}

TEST(MisuseWarnings, ALayerAddedAfterWrapping) {
  for (const int ranks : {1, 2}) {
    run_rank_threads(ranks, [](const std::shared_ptr<ProcessGroup>& group) {
      const CapturedWarnings warnings;
      torch::nn::Sequential net(torch::nn::Linear(6, 4));
      auto model = DistributedDataParallel(net, group);
      net->push_back("head", torch::nn::Linear(4, 2));
      for (int step = 0; step < 100; ++step) model(values({4, 6})).sum().backward();
      EXPECT_THAT(warnings.messages(),
                  ElementsAre(HasSubstr("the module got parameter head.weight after it was")));
    });
  }
}

// Seeds, and returns what the ranks warn of.
std::vector<std::string> warnings_of_draws(double dropout, bool functional,
                                           const std::function<void(ProcessGroup&)>& seed) {
  std::vector<std::string> warnings;
  for (const RankOutcome& outcome : run_ranks(3, [&](Rank& rank) {
         const CapturedWarnings captured;
         const auto group = init_process_group({.backend = "shm",
                                                .init_method = rank.rendezvous_url(),
                                                .rank = rank.rank(),
                                                .world_size = rank.size(),
                                                .device = at::kCPU});
         struct Net : torch::nn::Module {
           Net(double dropout, bool functional) : p(functional ? dropout : 0) {
             linear = register_module("linear", torch::nn::Linear(6, 4));
             layer = register_module("layer", torch::nn::Dropout(functional ? 0 : dropout));
           }
           at::Tensor forward(const at::Tensor& x) {
             const at::Tensor y = layer(linear(x));
             return p > 0 ? torch::dropout(y, p, is_training()) : y;
           }
           double p;
           torch::nn::Linear linear{nullptr};
           torch::nn::Dropout layer{nullptr};
         };
         seed(*group);
         Net net(dropout, functional);
         auto model = DistributedDataParallel(net, group);
         for (int step = 0; step < 2; ++step) model(values({4, 6})).sum().backward();
         for (const std::string& message : captured.messages()) rank.report(message);
       })) {
    if (!outcome.result.empty()) warnings.push_back(outcome.result);
  }
  return warnings;
}

TEST(MisuseWarnings, EqualRandomNumbersOnAllRanks) {
  const auto alike = [](ProcessGroup&) { torch::manual_seed(3); };
  const auto differently = [](ProcessGroup& group) { seed_everything(3, group); };
  const auto one_warning = ElementsAre(
      AllOf(HasSubstr("rank 1 of 3: "), HasSubstr("lockstep::seed_everything(seed, group)")));
  for (const bool functional : {false, true}) {
    EXPECT_THAT(warnings_of_draws(0.5, functional, alike), one_warning);
    EXPECT_THAT(warnings_of_draws(0.5, functional, differently), IsEmpty());
  }
  EXPECT_THAT(warnings_of_draws(0, false, alike), IsEmpty());  // draws nothing
}

}  // namespace
}  // namespace lockstep::testing
