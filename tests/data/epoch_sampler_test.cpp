// SPDX-License-Identifier: BSD-3-Clause
// The warning about epochs that all have the same order.
#include "lockstep/data/epoch_sampler.h"

#include <sstream>

#include "tests/support/captured_warnings.h"
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/distributed_weighted_sampler.h"
#include "lockstep/data/memory_loader.h"

namespace lockstep {
namespace {

using testing::CapturedWarnings;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void run_epoch(EpochSampler& sampler) {
  sampler.reset();
  while (sampler.next(3)) {
  }
}

TEST(EpochSampler, WarnsWhenASecondEpochRepeatsTheFirst) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 0);
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(), IsEmpty());
  sampler.reset();
  EXPECT_THAT(
      warnings.messages(),
      ElementsAre("DistributedSampler, rank 0 of 2: set_epoch was not called since the last "
                  "epoch, so this epoch has the same order; call "
                  "sampler.set_epoch(epoch) before each epoch"));
}

TEST(EpochSampler, WarnsAlthoughTheFirstOfTwoEpochsWasSet) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 0);
  sampler.set_epoch(0);
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(), IsEmpty());
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(), SizeIs(1));
}

TEST(EpochSampler, OnlyRank0Warns) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 1);
  run_epoch(sampler);
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(), IsEmpty());
}

TEST(EpochSampler, WarnsOfWeightedDrawsToo) {
  const CapturedWarnings warnings;
  DistributedWeightedSampler sampler(torch::ones({4}), 8, 2, 0);
  run_epoch(sampler);
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(),
              ElementsAre(HasSubstr("DistributedWeightedSampler, rank 0 of 2: set_epoch")));
}

TEST(EpochSampler, WarnsOncePerProcess) {
  const CapturedWarnings warnings(CapturedWarnings::Repeats::once);
  for (int sampler = 0; sampler < 2; ++sampler) {
    DistributedSampler of_epochs(10, 2, 0);
    for (int epoch = 0; epoch < 3; ++epoch) run_epoch(of_epochs);
  }
  EXPECT_THAT(warnings.messages(), SizeIs(1));
}

TEST(EpochSampler, WarnsOfALoadersCopy) {
  const CapturedWarnings warnings;
  const auto rows = torch::zeros({10, 1});
  MemoryLoader loader(rows, rows, DistributedSampler(10, 2, 0), {.batch_size = 4});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for ([[maybe_unused]] auto& batch : loader) {
    }
  }
  EXPECT_THAT(warnings.messages(), SizeIs(1));
}

TEST(EpochSampler, DoesNotWarnIfTheOriginalOfALoadersCopyIsSet) {
  const CapturedWarnings warnings;
  const auto rows = torch::zeros({10, 1});
  DistributedSampler sampler(10, 2, 0);
  MemoryLoader loader(rows, rows, sampler, {.batch_size = 4});
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(0);  // on purpose the same
    for ([[maybe_unused]] auto& batch : loader) {
    }
  }
  EXPECT_THAT(warnings.messages(), IsEmpty());
}

TEST(EpochSampler, DoesNotWarnIfOrderIsWanted) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 0, {.shuffle = false});
  run_epoch(sampler);
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(), IsEmpty());
}

TEST(EpochSampler, DoesNotWarnAfterAnUnfinishedOrEmptyEpoch) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 0);
  (void)sampler.next(4);
  sampler.reset();
  sampler.reset();
  DistributedSampler empty(0, 2, 0);
  run_epoch(empty);
  run_epoch(empty);
  EXPECT_THAT(warnings.messages(), IsEmpty());
}

// Loads what it saves.
void save_and_load(EpochSampler& sampler) {
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  sampler.load(in);
}

TEST(EpochSampler, DoesNotWarnAfterLoad) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 0);
  run_epoch(sampler);
  save_and_load(sampler);
  EXPECT_EQ(sampler.next(1), c10::nullopt);
  sampler.reset();
  EXPECT_THAT(warnings.messages(), IsEmpty());
}

TEST(EpochSampler, WarnsOfTheSecondEpochAfterLoad) {
  const CapturedWarnings warnings;
  DistributedSampler sampler(10, 2, 0);
  (void)sampler.next(3);
  save_and_load(sampler);
  while (sampler.next(3)) {
  }
  EXPECT_THAT(warnings.messages(), IsEmpty());
  run_epoch(sampler);
  EXPECT_THAT(warnings.messages(), SizeIs(1));
}

}  // namespace
}  // namespace lockstep
