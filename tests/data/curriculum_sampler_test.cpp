// SPDX-License-Identifier: BSD-3-Clause
// A pool that widens by score, dealt to ranks.
#include "lockstep/data/curriculum_sampler.h"

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "tests/support/captured_warnings.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/data/microbatch_plan.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAreArray;
using Indices = std::vector<std::size_t>;

constexpr std::int64_t kSamples = 100;
constexpr std::int64_t kBatch = 12;
constexpr std::int64_t kSteps = 9;  // in an epoch: 8 of 12 samples, one of 4

// Sample i is the (kSamples - 1 - i)th in order of difficulty: the last ones are the easiest.
at::Tensor scores() {
  return torch::arange(kSamples, 0, -1, torch::kDouble);
}

CurriculumSamplerOptions options() {
  return {.global_batch_size = kBatch, .full_at_step = 14, .start_share = 0.2, .seed = 5};
}

CurriculumSampler make(int ranks, int rank, const CurriculumSamplerOptions& chosen = options()) {
  return {static_cast<std::size_t>(kSamples), scores(), ranks, rank, chosen};
}

// The remaining global batches of an epoch, each sorted.
std::vector<Indices> rest(std::vector<CurriculumSampler>& samplers) {
  std::vector<Indices> steps;
  while (true) {
    Indices step;
    for (auto& sampler : samplers) {
      const auto own = sampler.next(static_cast<std::size_t>(kBatch) / samplers.size());
      if (!own) return steps;
      step.insert(step.end(), own->begin(), own->end());
    }
    std::ranges::sort(step);
    steps.push_back(step);
  }
}

std::vector<CurriculumSampler> on_ranks(int ranks, std::int64_t epoch,
                                        const CurriculumSamplerOptions& chosen = options()) {
  std::vector<CurriculumSampler> samplers;
  for (int rank = 0; rank < ranks; ++rank) {
    samplers.push_back(make(ranks, rank, chosen));
    samplers.back().set_epoch(epoch);
    samplers.back().reset();
  }
  return samplers;
}

std::vector<Indices> steps_of(int ranks, std::int64_t epoch,
                              const CurriculumSamplerOptions& chosen = options()) {
  auto samplers = on_ranks(ranks, epoch, chosen);
  return rest(samplers);
}

TEST(CurriculumSampler, DrawsEachStepFromItsPoolWithoutRepetition) {
  std::int64_t step = 0;
  for (const std::int64_t epoch : {0, 1}) {
    for (const Indices& batch : steps_of(3, epoch)) {
      const auto pool = make(1, 0).pool_size(step++);
      // The easiest samples have the largest indices.
      EXPECT_THAT(batch, Each(::testing::Ge(static_cast<std::size_t>(kSamples) - pool))) << step;
      if (batch.size() < static_cast<std::size_t>(kBatch)) continue;  // with padding
      EXPECT_EQ(std::set(batch.begin(), batch.end()).size(), batch.size()) << step;
    }
  }
  EXPECT_EQ(step, 2 * kSteps);
}

TEST(CurriculumSampler, ThePoolReachesTheHardestSampleOnlyWhenItIsComplete) {
  bool early = false;
  bool late = false;
  for (std::int64_t seed = 0; seed < 20; ++seed) {
    auto chosen = options();
    chosen.seed = seed;
    for (std::int64_t step = 0; const Indices& batch : steps_of(1, 1, chosen)) {
      (kSteps + step++ < chosen.full_at_step ? early : late) |= batch.front() == 0;
    }
  }
  EXPECT_FALSE(early);
  EXPECT_TRUE(late);
}

TEST(CurriculumSampler, TakesTheSameGlobalBatchesForAnyNumberOfRanks) {
  for (const Pacing pacing : {Pacing::linear, Pacing::root, Pacing::steps}) {
    auto chosen = options();
    chosen.pacing = pacing;
    for (const std::int64_t epoch : {0, 1, 2, 7}) {
      const auto alone = steps_of(1, epoch, chosen);
      for (const int ranks : {2, 4}) EXPECT_EQ(steps_of(ranks, epoch, chosen), alone) << epoch;
      // 100 samples on three ranks need two more as padding.
      auto padded = steps_of(3, epoch, chosen);
      EXPECT_EQ(padded.back().size(), alone.back().size() + 2);
      padded.back() = alone.back();
      EXPECT_EQ(padded, alone) << epoch;
    }
  }
}

TEST(CurriculumSampler, DependsOnSeedAndEpochOnly) {
  EXPECT_EQ(steps_of(2, 1), steps_of(2, 1));
  EXPECT_NE(steps_of(2, 1), steps_of(2, 0));
  auto chosen = options();
  chosen.seed = 6;
  EXPECT_NE(steps_of(2, 0, chosen), steps_of(2, 0));
}

TEST(CurriculumSampler, IsADistributedSamplerOnceThePoolIsComplete) {
  for (const bool drop_last : {false, true}) {
    auto chosen = options();
    chosen.drop_last = drop_last;
    for (int rank = 0; rank < 3; ++rank) {
      CurriculumSampler sampler = make(3, rank, chosen);
      DistributedSampler plain(static_cast<std::size_t>(kSamples), 3, rank,
                               {.seed = 5, .drop_last = drop_last});
      sampler.set_epoch(2);  // begins with step 18
      plain.set_epoch(2);
      EXPECT_EQ(sampler.indices(), plain.indices());
      EXPECT_EQ(sampler.size(), plain.size());
      sampler.set_epoch(1);
      plain.set_epoch(1);
      EXPECT_NE(sampler.indices(), plain.indices());
    }
  }
  auto all = options();
  all.start_share = 1;
  EXPECT_EQ(make(1, 0, all).indices(),
            DistributedSampler(static_cast<std::size_t>(kSamples), 1, 0, {.seed = 5}).indices());
}

TEST(CurriculumSampler, RepeatsNoSampleFromTheStepThatCompletesThePool) {
  std::set<std::size_t> seen;
  std::size_t count = 0;
  const auto steps = steps_of(1, 1);
  for (auto step = steps.begin() + (14 - kSteps); step != steps.end(); ++step) {
    seen.insert(step->begin(), step->end());
    count += step->size();
  }
  EXPECT_EQ(count, 3u * 12 + 4);
  EXPECT_EQ(seen.size(), count);
}

TEST(CurriculumSampler, DrawsEveryEasySampleEquallyOften) {
  std::vector<int> times(static_cast<std::size_t>(kSamples));
  auto chosen = options();
  chosen.full_at_step = 1'000'000'000;
  chosen.start_share = 0.195;  // 19.5 samples, rounded up in all of epoch 0
  constexpr int kSeeds = 1000;
  for (chosen.seed = 0; chosen.seed < kSeeds; ++chosen.seed) {
    for (const std::size_t sample : make(1, 0, chosen).indices()) ++times[sample];
  }
  // A mean of 5 an epoch; the standard deviation of the sum is about 45.
  for (std::size_t sample = 80; sample < 100; ++sample) {
    EXPECT_NEAR(times[sample], 5 * kSeeds, 300) << sample;
  }
  EXPECT_THAT(Indices(times.begin(), times.begin() + 80), Each(0u));
}

std::vector<std::size_t> pools(Pacing pacing, const std::vector<std::int64_t>& steps) {
  const CurriculumSampler sampler(10'000, torch::zeros(10'000), 1, 0,
                                  {.global_batch_size = 10,
                                   .full_at_step = 100,
                                   .pacing = pacing,
                                   .start_share = 0.0625,
                                   .stages = 4});
  std::vector<std::size_t> sizes;
  for (const auto step : steps) sizes.push_back(sampler.pool_size(step));
  return sizes;
}

TEST(CurriculumSampler, GrowsAsThePacingFunctionSays) {
  EXPECT_EQ(pools(Pacing::linear, {0, 20, 50, 99, 100, 1000}),
            (Indices{625, 2500, 5313, 9907, 10'000, 10'000}));
  EXPECT_EQ(pools(Pacing::root, {0, 25, 100}), (Indices{625, 5030, 10'000}));
  EXPECT_EQ(pools(Pacing::steps, {0, 24, 25, 49, 50, 75, 99, 100}),
            (Indices{625, 625, 1250, 1250, 2500, 5000, 5000, 10'000}));
}

TEST(CurriculumSampler, ThePoolIgnoresRoundingErrors) {
  auto chosen = options();
  chosen.global_batch_size = 1;
  chosen.start_share = 0.07;  // 0.07 * 100 is a little more than 7
  EXPECT_EQ(make(1, 0, chosen).pool_size(0), 7u);
}

TEST(CurriculumSampler, ThePoolHoldsAtLeastAGlobalBatch) {
  auto chosen = options();
  chosen.start_share = 0.01;
  EXPECT_EQ(make(2, 0, chosen).pool_size(0), static_cast<std::size_t>(kBatch));
  chosen.global_batch_size = 1000;
  EXPECT_EQ(make(2, 0, chosen).pool_size(0), static_cast<std::size_t>(kSamples));
}

TEST(CurriculumSampler, ResumesInTheMiddleOfAnEpochWithAnotherNumberOfRanks) {
  for (const std::int64_t epoch : {0, 1, 3}) {
    const auto whole = steps_of(1, epoch);
    CurriculumSampler saved = make(4, 1);
    saved.set_epoch(epoch);
    const CurriculumState state = saved.state_after(5);
    EXPECT_EQ(state.samples_consumed, 5 * kBatch);
    EXPECT_EQ(state.epoch, epoch);
    std::vector<CurriculumSampler> resumed;
    for (int rank = 0; rank < 2; ++rank) {
      CurriculumSampler original = make(2, rank);
      resumed.push_back(original);  // as a loader takes it
      original.resume(state);
      original.set_epoch(epoch);  // as the loop over the epochs does
      resumed.back().reset();
    }
    EXPECT_EQ(rest(resumed), std::vector<Indices>(whole.begin() + 5, whole.end()));
    for (auto& sampler : resumed) sampler.set_epoch(epoch + 1);
    for (auto& sampler : resumed) sampler.reset();
    EXPECT_EQ(rest(resumed), steps_of(1, epoch + 1));
  }
}

TEST(CurriculumSampler, AnotherEpochDropsTheStateToResumeFrom) {
  CurriculumSampler sampler = make(1, 0);
  sampler.resume(sampler.state_after(5));
  sampler.set_epoch(1);
  sampler.reset();
  std::vector<CurriculumSampler> samplers{sampler};
  EXPECT_EQ(rest(samplers), steps_of(1, 1));
}

void copy_position(const CurriculumSampler& from, CurriculumSampler& to) {
  std::stringstream file;
  torch::serialize::OutputArchive out;
  from.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  to.load(in);
}

TEST(CurriculumSampler, SavesItsPositionForAnyNumberOfRanks) {
  const testing::CapturedWarnings warnings;  // an epoch is repeated on purpose
  CurriculumSampler saved = make(3, 2);
  saved.set_epoch(1);
  saved.reset();
  for (int step = 0; step < 4; ++step) saved.next(4);

  std::vector<CurriculumSampler> loaded{make(1, 0)};
  copy_position(saved, loaded[0]);
  const auto whole = steps_of(1, 1);
  EXPECT_EQ(rest(loaded), std::vector<Indices>(whole.begin() + 4, whole.end()));
  loaded[0].reset();
  EXPECT_EQ(rest(loaded), whole);
}

// The global batches of one loop over a loader, each sorted.
std::vector<Indices> loop(MemoryLoader& loader) {
  std::vector<Indices> steps;
  for (auto& batch : loader) {
    const auto* row = batch.data.data_ptr<std::int64_t>();
    steps.emplace_back(row, row + batch.data.numel());
    std::ranges::sort(steps.back());
  }
  return steps;
}

TEST(CurriculumSampler, ALoaderStartsAtTheLoadedPosition) {
  const testing::CapturedWarnings warnings;  // an epoch is repeated on purpose
  CurriculumSampler saved = make(2, 0);
  saved.set_epoch(1);
  saved.reset();
  for (int step = 0; step < 4; ++step) saved.next(6);

  CurriculumSampler sampler = make(1, 0);
  MemoryLoader loader(torch::arange(kSamples), torch::zeros(kSamples), sampler,
                      {.batch_size = static_cast<std::size_t>(kBatch)});
  copy_position(saved, sampler);
  const auto whole = steps_of(1, 1);
  EXPECT_EQ(loop(loader), std::vector<Indices>(whole.begin() + 4, whole.end()));
  EXPECT_EQ(loop(loader), whole);
}

TEST(CurriculumSampler, SavesAStateFromWhichNoStepWasTakenYet) {
  CurriculumSampler resumed = make(1, 0);
  resumed.set_epoch(1);
  resumed.resume(resumed.state_after(4));
  CurriculumSampler sampler = make(1, 0);
  MemoryLoader loader(torch::arange(kSamples), torch::zeros(kSamples), sampler,
                      {.batch_size = static_cast<std::size_t>(kBatch)});
  copy_position(resumed, sampler);
  const auto whole = steps_of(1, 1);
  EXPECT_EQ(loop(loader), std::vector<Indices>(whole.begin() + 4, whole.end()));
}

TEST(CurriculumSampler, DealsDisjointSamplesToTheRanksOfAGroup) {
  std::vector<Indices> of_rank(2);
  testing::run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    CurriculumSampler sampler(static_cast<std::size_t>(kSamples), scores(), group, options());
    MemoryLoader loader(torch::arange(kSamples), torch::zeros(kSamples), sampler,
                        {.batch_size = 6});
    sampler.set_epoch(1);
    auto& own = of_rank[static_cast<std::size_t>(group->rank())];
    for (auto& batch : loader) {
      for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
        own.push_back(static_cast<std::size_t>(batch.data[i].item<std::int64_t>()));
      }
    }
  });
  const auto steps = steps_of(1, 1);
  for (std::size_t step = 0; step + 1 < steps.size(); ++step) {
    Indices both;
    for (const Indices& own : of_rank) {
      const auto first = own.begin() + static_cast<std::ptrdiff_t>(step * 6);
      both.insert(both.end(), first, first + 6);
    }
    EXPECT_THAT(both, UnorderedElementsAreArray(steps[step]));
  }
}

TEST(CurriculumSampler, TakesInfiniteScores) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor unsorted = torch::tensor({infinity, 1.0, -infinity, 1.0}, torch::kDouble);
  const CurriculumSampler sampler(
      4, unsorted, 1, 0, {.global_batch_size = 1, .full_at_step = 1000, .start_share = 0.4});
  // Sample 3 is behind sample 1, which has the same score.
  EXPECT_THAT(sampler.indices(), Each(AnyOf(1u, 2u)));
}

TEST(CurriculumSampler, TakesTheValuesOfLazilyNegatedScores) {
  const at::Tensor negated = torch::_neg_view(torch::arange(8, torch::kDouble));
  const CurriculumSampler sampler(
      8, negated, 1, 0, {.global_batch_size = 2, .full_at_step = 1000, .start_share = 0.25});
  EXPECT_THAT(sampler.indices(), Each(AnyOf(6u, 7u)));
}

template <class Call>
void expect_refused(Call call, const std::string& value) {
  EXPECT_THAT(call, ThrowsMessage<UsageError>(
                        AllOf(HasSubstr("[CurriculumSampler] rank 1 of 2: "), HasSubstr(value))));
}

TEST(CurriculumSampler, NamesWrongArguments) {
  const auto refused = [](void (*change)(CurriculumSamplerOptions&), const std::string& value) {
    auto chosen = options();
    change(chosen);
    expect_refused([&] { make(2, 1, chosen).reset(); }, value);
  };
  refused([](auto& o) { o.start_share = 0; }, "start_share is 0;");
  refused([](auto& o) { o.start_share = -0.5; }, "start_share is -0.5;");
  refused([](auto& o) { o.start_share = 1.5; }, "start_share is 1.5;");
  refused([](auto& o) { o.start_share = std::numeric_limits<double>::quiet_NaN(); },
          "start_share is nan;");
  refused([](auto& o) { o.full_at_step = 0; }, "full_at_step is 0;");
  refused([](auto& o) { o.global_batch_size = 0; }, "global_batch_size is 0;");
  refused([](auto& o) { o.global_batch_size = 7; }, "global_batch_size is 7;");
  refused(
      [](auto& o) {
        o.pacing = Pacing::steps;
        o.stages = 0;
      },
      "stages is 0;");
  const auto with = [](std::size_t samples, const at::Tensor& given) {
    return [=] { CurriculumSampler(samples, given, 2, 1, options()); };
  };
  at::Tensor nan = scores();
  nan[7] = std::numeric_limits<double>::quiet_NaN();
  expect_refused(with(100, nan), "score 7 of 100 is nan;");
  expect_refused(with(101, scores()), "100 scores for 101 samples;");
  expect_refused(with(99, scores()), "100 scores for 99 samples;");
  expect_refused(with(0, torch::empty(0)), "no samples");
  expect_refused(with(100, torch::zeros({100, 1})), "shape [100, 1]");
  expect_refused(with(100, {}), "undefined");
}

TEST(CurriculumSampler, NamesWrongCalls) {
  CurriculumSampler sampler = make(2, 1);
  expect_refused([&] { sampler.next(12); }, "a batch of 12 samples");
  expect_refused([&] { sampler.reset(99); }, "a data set of 99 samples, but 100 scores");
  expect_refused([&] { (void)sampler.state_after(10); }, "after 10 steps");
  expect_refused(
      [&] {
        sampler.deal_microbatches(MicrobatchPlan{.microbatches = 4, .size = 2, .run = {2, 4}});
      },
      "4 microbatches of 2 samples are not a global_batch_size of 12");
  const auto refused = [&](void (*change)(CurriculumState&), const std::string& value) {
    CurriculumState state = sampler.state_after(0);
    change(state);
    expect_refused([&] { sampler.resume(state); }, value);
  };
  refused([](auto& s) { s.seed = 6; }, "seed is 6, but the sampler's is 5");
  refused([](auto& s) { s.global_batch_size = 24; },
          "global_batch_size is 24, but the sampler's is 12");
  refused([](auto& s) { s.samples = 99; }, "number of samples is 99, but the sampler's is 100");
  refused([](auto& s) { s.samples_consumed = 13; }, "consumed 13 samples");
  refused([](auto& s) { s.samples_consumed = 108; }, "consumed 108 samples");
}

}  // namespace
}  // namespace lockstep
