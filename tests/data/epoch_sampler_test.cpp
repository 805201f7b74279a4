// SPDX-License-Identifier: BSD-3-Clause
// The warning about epochs that all have the same order, and resuming from a cursor.
#include "lockstep/data/epoch_sampler.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "tests/support/captured_warnings.h"
#include <gmock/gmock.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
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
using ::testing::ThrowsMessage;

constexpr std::size_t kEpochSamples = 50;

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
      ElementsAre("[DistributedSampler] rank 0 of 2: set_epoch was not called since the last "
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
              ElementsAre(HasSubstr("[DistributedWeightedSampler] rank 0 of 2: set_epoch")));
}

// In a process that runs nothing else: another test, or this one before, may have caused the
// warning of this process.
TEST(EpochSampler, WarnsOncePerProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto warns_once = [] {
    const CapturedWarnings warnings(CapturedWarnings::Repeats::once);
    for (int sampler = 0; sampler < 2; ++sampler) {
      DistributedSampler of_epochs(10, 2, 0);
      for (int epoch = 0; epoch < 3; ++epoch) run_epoch(of_epochs);
    }
    std::_Exit(warnings.messages().size() == 1 ? 0 : 1);
  };
  EXPECT_EXIT(warns_once(), ::testing::ExitedWithCode(0), "");
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

// The samples of each step on all ranks together, from a cursor on.
std::vector<std::vector<std::size_t>> steps_of(int ranks, std::size_t global_batch,
                                               const DataCursor& cursor) {
  std::vector<std::vector<std::size_t>> steps;
  for (int rank = 0; rank < ranks; ++rank) {
    DistributedSampler sampler(kEpochSamples, ranks, rank, {.seed = 3});
    sampler.resume(cursor);
    sampler.reset();
    for (std::size_t step = 0;; ++step) {
      const auto own = sampler.next(global_batch / static_cast<std::size_t>(ranks));
      if (!own) break;
      steps.resize(std::max(steps.size(), step + 1));
      steps[step].insert(steps[step].end(), own->begin(), own->end());
    }
  }
  for (auto& step : steps) std::ranges::sort(step);
  return steps;
}

TEST(EpochSampler, GoesOnInTheMiddleOfAnEpochAtAnyNumberOfRanks) {
  constexpr std::size_t kBatch = 12;
  const DataCursor start{.seed = 3, .epoch = 2, .samples_consumed = 0, .samples = kEpochSamples};
  for (const int before : {1, 2, 3, 4}) {
    const auto whole = steps_of(before, kBatch, start);
    for (const int after : {1, 2, 3, 4}) {
      for (std::size_t done = 0; done < whole.size(); ++done) {
        DataCursor cursor = start;
        cursor.samples_consumed = static_cast<std::int64_t>(done * kBatch);
        const auto rest = steps_of(after, kBatch, cursor);
        // The padding of the last step depends on the number of ranks.
        const std::size_t compared = whole.size() - done - (before == after ? 0 : 1);
        for (std::size_t step = 0; step < compared; ++step) {
          EXPECT_EQ(rest.at(step), whole.at(done + step)) << before << ", " << after;
        }
      }
    }
  }
}

TEST(EpochSampler, TheNextEpochAfterACursorIsWhole) {
  DistributedSampler sampler(kEpochSamples, 2, 1);
  sampler.resume({.seed = 0, .epoch = 4, .samples_consumed = 30, .samples = kEpochSamples});
  EXPECT_EQ(sampler.epoch(), 4);
  EXPECT_THAT(sampler.indices(), SizeIs(10));
  sampler.set_epoch(5);
  sampler.reset();
  EXPECT_THAT(*sampler.next(100), SizeIs(25));
}

TEST(EpochSampler, KeepsACursorInItsOwnArchive) {
  DistributedSampler sampler(kEpochSamples, 2, 0);
  sampler.resume({.seed = 0, .epoch = 1, .samples_consumed = 30, .samples = kEpochSamples});
  sampler.reset();
  (void)sampler.next(4);
  DistributedSampler other(kEpochSamples, 2, 0);
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  other.load(in);
  EXPECT_EQ(*other.next(100), *sampler.next(100));
}

TEST(EpochSampler, RefusesACursorOfAnother) {
  DistributedSampler sampler(kEpochSamples, 2, 1, {.seed = 7});
  const auto resume = [&](const DataCursor& cursor) {
    return [&, cursor] { sampler.resume(cursor); };
  };
  EXPECT_THAT(
      resume({.seed = 8, .samples = kEpochSamples}),
      ThrowsMessage<UsageError>(HasSubstr("rank 1 of 2: the checkpoint's seed is 8, but the "
                                          "sampler's is 7; use the seed 8")));
  EXPECT_THAT(resume({.seed = 7, .samples = 51}),
              ThrowsMessage<UsageError>(HasSubstr("number of samples is 51")));
  EXPECT_THAT(resume({.seed = 7, .samples_consumed = 51, .samples = kEpochSamples}),
              ThrowsMessage<UsageError>(HasSubstr("at sample 51 of 50")));
}

}  // namespace
}  // namespace lockstep
