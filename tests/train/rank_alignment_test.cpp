// SPDX-License-Identifier: BSD-3-Clause
// Ranks that have come to different states, or have none, and how they come to one.
#include "lockstep/train/rank_alignment.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/state_sha256.h"
#include "lockstep/comm/objects.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/parallel/errors.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::run_rank_threads;

constexpr std::size_t kSamplesOfFit = 48;

// What a rank trains.
struct Trained {
  explicit Trained(ProcessGroup& group)
      : optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        sampler(kSamplesOfFit, group, {.seed = 7}) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) parameter.fill_(0.5);
  }

  void take_steps(std::int64_t count) {
    for (; progress.steps < count; ++progress.steps) {
      optimizer.zero_grad();
      net->forward(testing::values({4, 6}, static_cast<double>(progress.steps))).sum().backward();
      optimizer.step();
      progress.samples += 12;
      progress.sums.weights += 12;
      progress.sums.losses =
          at::full({}, 0.1 * static_cast<double>(progress.steps + 1), at::kDouble);
      numbers["last_epoch"] = static_cast<double>(progress.steps + 1);
    }
  }

  CheckpointContents contents() {
    return {.module = net.ptr(), .optimizer = &optimizer, .scheduler = &numbers};
  }

  testing::Mlp net;
  torch::optim::SGD optimizer;
  DistributedSampler sampler;
  std::map<std::string, double> numbers{{"last_epoch", 0}};
  TrainerProgress progress;
};

TEST(RankAlignment, GivesTheStateOfTheFurthestToThoseThatHaveComeLessFar) {
  run_rank_threads(4, [](std::shared_ptr<ProcessGroup> group) {
    Trained trained(*group);
    const bool has_state = group->rank() != 3;
    if (has_state) trained.take_steps(group->rank() == 0 ? 2 : 3);
    const Alignment made =
        align_ranks(trained.progress, has_state, trained.contents(), trained.sampler, *group);
    EXPECT_EQ(made.donor, 1);
    EXPECT_THAT(made.receivers, ElementsAre(0, 3));
    EXPECT_EQ(made.text(), "; ranks 0, 3 have got the state of rank 1");
    EXPECT_EQ(trained.progress.steps, 3);
    EXPECT_EQ(trained.progress.samples, 36);
    EXPECT_EQ(trained.progress.sums.weights, 36);
    EXPECT_EQ(trained.progress.sums.losses.item<double>(), 0.1 * 3.0);
    EXPECT_EQ(trained.numbers["last_epoch"], 3);
    EXPECT_EQ(trained.sampler.indices().size(), 3U);  // of the 12 samples that are left
    Trained undisturbed(*group);
    undisturbed.take_steps(3);
    EXPECT_EQ(state_sha256(*trained.net, trained.optimizer),
              state_sha256(*undisturbed.net, undisturbed.optimizer));
  });
}

TEST(RankAlignment, SendsNothingIfAllHaveComeEquallyFar) {
  run_rank_threads(2, [](std::shared_ptr<ProcessGroup> group) {
    Trained trained(*group);
    trained.take_steps(1);
    trained.progress.batches = 1;
    const Alignment made =
        align_ranks(trained.progress, true, trained.contents(), trained.sampler, *group);
    EXPECT_THAT(made.receivers, IsEmpty());
    EXPECT_EQ(made.text(), "");
    EXPECT_EQ(trained.progress.batches, 0);
    EXPECT_EQ(trained.sampler.indices().size(), 18U);
  });
}

// The ranks that have the callbacks of the epoch behind them may have other learning rates.
TEST(RankAlignment, ARankWhoseEpochHasEndedIsFurtherThanOneWhoseCallbacksStillRun) {
  run_rank_threads(2, [](std::shared_ptr<ProcessGroup> group) {
    Trained trained(*group);
    trained.take_steps(4);
    trained.progress.epoch = 1;
    trained.progress.samples = 0;
    if (group->rank() == 0) trained.progress.ended = EpochSummary{.epoch = 0, .steps = 4};
    const Alignment made =
        align_ranks(trained.progress, true, trained.contents(), trained.sampler, *group);
    EXPECT_EQ(made.donor, 1);
    EXPECT_FALSE(trained.progress.ended);
  });
}

TEST(RankAlignment, ARankThatLacksTheCheckpointOnlyIsFurtherThanOneWhoseCallbacksStillRun) {
  run_rank_threads(2, [](std::shared_ptr<ProcessGroup> group) {
    Trained trained(*group);
    trained.take_steps(4);
    trained.progress.epoch = 1;
    trained.progress.samples = 0;
    trained.progress.ended = EpochSummary{.epoch = 0, .steps = 4};
    trained.progress.lacks_checkpoint_only = group->rank() == 1;
    const Alignment made =
        align_ranks(trained.progress, true, trained.contents(), trained.sampler, *group);
    EXPECT_EQ(made.donor, 1);
    EXPECT_TRUE(trained.progress.ended);
    EXPECT_TRUE(trained.progress.lacks_checkpoint_only);
  });
}

TEST(RankAlignment, GivesTheSummaryForTheCallbacksThatAreToRunAgain) {
  run_rank_threads(2, [](std::shared_ptr<ProcessGroup> group) {
    Trained trained(*group);
    const bool has_state = group->rank() == 0;
    if (has_state) {
      trained.take_steps(4);
      trained.progress.epoch = 1;
      trained.progress.samples = 0;
      trained.progress.ended = EpochSummary{
          .epoch = 0, .steps = 4, .loss = 0.3, .metrics = {{"accuracy", 0.7}}, .evaluation = 0.7};
    }
    align_ranks(trained.progress, has_state, trained.contents(), trained.sampler, *group);
    ASSERT_TRUE(trained.progress.ended);
    EXPECT_EQ(trained.progress.ended->steps, 4);
    EXPECT_EQ(trained.progress.ended->loss, 0.3);
    EXPECT_EQ(trained.progress.ended->metrics.at("accuracy"), 0.7);
    EXPECT_EQ(trained.progress.ended->evaluation, 0.7);
  });
}

// The last rank has no state, and rank 0 would give it.
TEST(RankAlignment, RefusesToSpreadAStateThatAnotherRankDoesNotHave) {
  const auto message_if_differs = [](int ranks, int different, const std::string& expected) {
    run_rank_threads(ranks, [=](std::shared_ptr<ProcessGroup> group) {
      Trained trained(*group);
      const bool has_state = group->rank() < group->size() - 1;
      if (has_state) trained.take_steps(2);
      if (group->rank() == different) {
        const at::NoGradGuard no_grad;
        trained.net->parameters().front()[0][0] += 1e-7;
      }
      EXPECT_THAT(message_of<OutOfSync>([&] {
                    align_ranks(trained.progress, has_state, trained.contents(), trained.sampler,
                                *group);
                  }),
                  HasSubstr(expected));
    });
  };
  message_if_differs(3, 1, "after step 2, rank 1 has other weights, buffers or optimizer states");
  message_if_differs(4, 0,
                     "rank 0 has other weights, buffers or optimizer states than ranks 1 and 2");
}

TEST(RankAlignment, NeedsARankThatHasAState) {
  run_rank_threads(2, [](std::shared_ptr<ProcessGroup> group) {
    Trained trained(*group);
    EXPECT_THAT(message_of<Error>([&] {
                  align_ranks(trained.progress, false, trained.contents(), trained.sampler, *group);
                }),
                HasSubstr("no rank of this generation has a state to train from"));
  });
}

}  // namespace
}  // namespace lockstep
