// SPDX-License-Identifier: BSD-3-Clause
// Warnings about uses that silently train a different model.
#include "tests/parallel/models.h"
#include "tests/support/captured_warnings.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/dropout.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/parallel/join.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MisuseWarnings, ALayerAddedAfterWrapping) {
  for (const int ranks : {1, 2}) {
    run_rank_threads(ranks, [](const std::shared_ptr<ProcessGroup>& group) {
      const CapturedWarnings warnings;
      torch::nn::Sequential net(torch::nn::Linear(6, 4));
      auto model = DistributedDataParallel(net, group);
      const auto train = [&] { model(values({4, 6})).sum().backward(); };
      torch::nn::Linear frozen(4, 4);
      for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
      net->push_back("frozen", frozen);
      for (int step = 0; step < 70; ++step) train();
      EXPECT_THAT(warnings.messages(), IsEmpty());
      net->push_back("head", torch::nn::Linear(4, 2));
      for (int step = 0; step < 140; ++step) train();
      if (group->rank() == 0) {
        EXPECT_THAT(warnings.messages(),
                    ElementsAre(HasSubstr("the module got parameter head.weight after it was")));
      } else {
        EXPECT_THAT(warnings.messages(), IsEmpty());
      }
    });
  }
}

// Seeds, trains for two steps from rank `first` on, and returns what the ranks warn of.
std::vector<std::string> warnings_of_draws(double dropout, bool functional,
                                           const std::function<void(ProcessGroup&)>& seed,
                                           int first = 0) {
  std::vector<std::string> warnings;
  for (const RankOutcome& outcome : run_ranks(3, [&](Rank& rank) {
         const auto group = init_process_group({.backend = "shm",
                                                .init_method = rank.rendezvous_url(),
                                                .rank = rank.rank(),
                                                .world_size = rank.size(),
                                                .device = at::kCPU});
         const CapturedWarnings captured;
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
         lockstep::join(model, [&] {
           if (rank.rank() < first) return;
           for (int step = 0; step < 2; ++step) model(values({4, 6})).sum().backward();
         });
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
    EXPECT_THAT(warnings_of_draws(0.5, functional, differently, 1), IsEmpty());
  }
  EXPECT_THAT(warnings_of_draws(0, false, alike), IsEmpty());  // draws nothing
}

}  // namespace
}  // namespace lockstep::testing
