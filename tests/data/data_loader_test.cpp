// SPDX-License-Identifier: BSD-3-Clause
// Batches from worker threads: their order, resumption, errors, and loops that are left early.
#include "lockstep/data/data_loader.h"

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <torch/cuda.h>
#include <torch/data/datasets/base.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/curriculum_sampler.h"
#include "lockstep/launch/start_method.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Sample i is ([i, i], i). `before` is called first, with the index.
class NumberDataset : public torch::data::datasets::Dataset<NumberDataset> {
 public:
  explicit NumberDataset(std::size_t size, std::function<void(std::size_t)> before = {})
      : size_(size), before_(std::move(before)) {}

  torch::data::Example<> get(std::size_t index) override {
    if (before_) before_(index);
    const auto i = static_cast<std::int64_t>(index);
    return {torch::full({2}, i, torch::kFloat), torch::tensor(i)};
  }
  c10::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
  std::function<void(std::size_t)> before_;
};

using DrawnNumbers = std::vector<std::int64_t>;

DrawnNumbers numbers_in(const torch::data::Example<>& batch) {
  const auto* first = batch.target.data_ptr<std::int64_t>();
  return {first, first + batch.target.numel()};
}

DrawnNumbers all_numbers(DataLoader& loader) {
  DrawnNumbers all;
  for (auto& batch : loader) {
    for (const auto number : numbers_in(batch)) all.push_back(number);
  }
  return all;
}

DrawnNumbers order_of(const EpochSampler& sampler) {
  const auto order = sampler.indices();
  return {order.begin(), order.end()};
}

TEST(DataLoader, GivesTheSamplersOrderWithAnyNumberOfWorkers) {
  for (const int workers : {0, 1, 3}) {
    DistributedSampler sampler(103, 2, 1, {.seed = 3});
    DataLoader loader(NumberDataset(103), sampler, {.batch_size = 5, .workers = workers});
    EXPECT_EQ(loader.batches_per_epoch(), 11u);
    for (const std::int64_t epoch : {0, 1}) {
      sampler.set_epoch(epoch);
      EXPECT_EQ(all_numbers(loader), order_of(sampler)) << workers << " workers, epoch " << epoch;
    }
    auto first = loader.begin();
    EXPECT_EQ(first->data.sizes(), (std::vector<std::int64_t>{5, 2}));
    EXPECT_TRUE(first->data.select(1, 1).equal(first->target.to(torch::kFloat)));
  }
}

// The first batch is held up until the second one is loaded.
TEST(DataLoader, KeepsTheOrderIfALaterBatchIsReadyFirst) {
  std::promise<void> second;
  const auto ready = second.get_future().share();
  std::once_flag once;
  const NumberDataset dataset(4, [&](std::size_t index) {
    if (index == 0) ready.wait_for(std::chrono::minutes(1));
    if (index == 3) std::call_once(once, [&] { second.set_value(); });
  });
  DataLoader loader(dataset, DistributedSampler(4, 1, 0, {.shuffle = false}),
                    {.batch_size = 2, .workers = 2});
  EXPECT_EQ(all_numbers(loader), (DrawnNumbers{0, 1, 2, 3}));
  EXPECT_EQ(ready.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST(DataLoader, ResumesInTheMiddleOfAnEpochWithAnotherNumberOfRanks) {
  DistributedSampler whole(40, 1, 0, {.seed = 5});
  whole.set_epoch(2);
  const DrawnNumbers order = order_of(whole);
  // Two ranks trained 3 batches of 4 each, and their workers had loaded more.
  DistributedSampler before(40, 2, 0, {.seed = 5});
  before.set_epoch(2);
  DataLoader loader(NumberDataset(40), before, {.batch_size = 4});
  auto batch = loader.begin();
  for (int i = 0; i < 3; ++i) ++batch;
  const DataCursor cursor = before.cursor_after(3 * 4 * 2);

  std::multiset<std::int64_t> rest;
  for (const int rank : {0, 1, 2, 3}) {
    DistributedSampler after(40, 4, rank, {.seed = 5});
    DataLoader resumed(NumberDataset(40), after, {.batch_size = 3});
    after.resume(cursor);
    for (const auto number : all_numbers(resumed)) rest.insert(number);
    after.set_epoch(3);
    EXPECT_EQ(all_numbers(resumed).size(), 10u);
  }
  EXPECT_EQ(rest, std::multiset<std::int64_t>(order.begin() + 24, order.end()));
}

TEST(DataLoader, ResumesACurriculum) {
  const CurriculumSamplerOptions options{.global_batch_size = 4, .full_at_step = 20, .seed = 1};
  const auto scores = torch::arange(30);
  CurriculumSampler first(30, scores, 1, 0, options);
  DataLoader loader(NumberDataset(30), first, {.batch_size = 4});
  const DrawnNumbers all = all_numbers(loader);
  CurriculumSampler second(30, scores, 1, 0, options);
  DataLoader resumed(NumberDataset(30), second, {.batch_size = 4});
  second.resume(first.state_after(3));
  EXPECT_EQ(all_numbers(resumed), DrawnNumbers(all.begin() + 12, all.end()));
}

TEST(DataLoader, TransformsDoNotDependOnRanksAndWorkers) {
  const auto loaded = [](int ranks, int workers) {
    std::map<std::int64_t, float> values;
    for (int rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler(24, ranks, rank, {.seed = 2});
      sampler.set_epoch(4);
      const BatchTransform noise = [](auto& batch, const BatchOrigin& origin) {
        for (std::size_t i = 0; i < origin.samples.size(); ++i) {
          const auto key = origin.seed * 10'000 + origin.epoch * 100 +
                           static_cast<std::int64_t>(origin.samples[i]);
          batch.data[static_cast<std::int64_t>(i)].add_(key);
        }
      };
      DataLoader loader(NumberDataset(24), sampler,
                        {.batch_size = 4,
                         .workers = workers,
                         .transforms = {noise, mixup({.alpha = 1, .classes = 24})},
                         .seed = 9});
      std::size_t at = 0;
      for (auto& batch : loader) {
        EXPECT_EQ(batch.target.sizes(), (std::vector<std::int64_t>{batch.data.size(0), 24}));
        for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
          values[order_of(sampler)[at++]] = batch.data[i][0].item<float>();
        }
      }
    }
    return values;
  };
  const auto expected = loaded(1, 0);
  EXPECT_EQ(expected.size(), 24u);
  EXPECT_EQ(loaded(2, 3), expected);
  EXPECT_EQ(loaded(3, 1), expected);
}

TEST(DataLoader, ExceptionsComeInOrderWithTheSample) {
  for (const int workers : {0, 2}) {
    const NumberDataset dataset(20, [](std::size_t index) {
      if (index == 7) throw UsageError("file 7 is damaged");
    });
    DistributedSampler sampler(20, 1, 0, {.shuffle = false});
    DataLoader loader(dataset, sampler, {.batch_size = 3, .workers = workers});
    DrawnNumbers seen;
    EXPECT_THAT(
        [&] {
          for (auto& batch : loader) {
            for (const auto number : numbers_in(batch)) seen.push_back(number);
          }
        },
        ThrowsMessage<UsageError>(
            "[DataLoader] epoch 0, sample 7, rank 0 of 1: file 7 is damaged"));
    EXPECT_EQ(seen, (DrawnNumbers{0, 1, 2, 3, 4, 5}));
    auto batch = loader.begin();
    ++batch;
    EXPECT_THROW(++batch, UsageError);
    EXPECT_TRUE(batch == loader.end());
  }
}

TEST(DataLoader, NestsExceptionsOfOtherTypes) {
  const NumberDataset dataset(4, [](std::size_t) { throw std::out_of_range("no such row"); });
  DataLoader loader(dataset, DistributedSampler(4, 1, 0, {.shuffle = false}), {.batch_size = 2});
  try {
    loader.begin();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[DataLoader] epoch 0, sample 0, rank 0 of 1: no such row");
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
  const BatchTransform fails = [](auto&, const BatchOrigin&) { throw UsageError("too dark"); };
  DataLoader dark(NumberDataset(4), DistributedSampler(4, 1, 0, {.shuffle = false}),
                  {.batch_size = 2, .transforms = {fails}});
  EXPECT_THAT([&] { dark.begin(); },
              ThrowsMessage<UsageError>(HasSubstr(
                  "epoch 0, the batch that begins with sample 0, rank 0 of 1: too dark")));
}

TEST(DataLoader, EndsItsWorkersWithTheLoop) {
  ASSERT_TRUE(may_fork());
  DistributedSampler sampler(1000, 1, 0);
  auto loader = std::make_unique<DataLoader>(NumberDataset(1000), sampler,
                                             DataLoaderOptions{.batch_size = 10, .workers = 3});
  for (auto& batch : *loader) {
    EXPECT_EQ(batch.target.size(0), 10);
    EXPECT_FALSE(may_fork());
    break;
  }
  EXPECT_TRUE(may_fork());
  auto batch = loader->begin();
  loader.reset();  // the loop goes on
  EXPECT_EQ((++batch)->target.size(0), 10);
}

// The worker that is left behind ends before the next sample of its batch.
TEST(DataLoader, AWorkerThatHangsEndsTheLoopAtTheTimeout) {
  std::promise<void> release;
  const auto released = release.get_future().share();
  std::atomic<int> loaded = 0;
  auto token = std::make_shared<int>();  // in each copy of the data set
  const std::weak_ptr<int> copies = token;
  const NumberDataset dataset(8, [released, &loaded, token](std::size_t index) {
    if (index == 5) released.wait();
    ++loaded;
  });
  auto loader = std::make_unique<DataLoader>(
      dataset, DistributedSampler(8, 1, 0, {.shuffle = false}),
      DataLoaderOptions{.batch_size = 4, .workers = 1, .timeout = std::chrono::seconds(2)});
  DrawnNumbers seen;
  EXPECT_THAT(
      [&] {
        for (auto& batch : *loader) seen = numbers_in(batch);
      },
      ThrowsMessage<TimeoutError>(
          AllOf(HasSubstr("the batch that begins with sample 4"), HasSubstr("within 2 s"))));
  EXPECT_EQ(seen, (DrawnNumbers{0, 1, 2, 3}));
  loader.reset();
  token.reset();
  const long of_this_test = 1;  // in `dataset`
  release.set_value();
  while (copies.use_count() > of_this_test) std::this_thread::yield();
  EXPECT_EQ(loaded, 6);
}

TEST(DataLoader, AForkedChildDoesNotWaitForWorkersThatItDoesNotHave) {
  DistributedSampler sampler(100, 1, 0);
  DataLoader loader(NumberDataset(100), sampler, {.batch_size = 2, .workers = 2});
  std::optional<DataLoader::Iterator> batch = loader.begin();
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 1;
    try {
      ++*batch;
    } catch (const UsageError&) {
      status = 0;
    }
    batch.reset();
    ::_exit(status);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ++*batch;
  EXPECT_EQ(numbers_in(**batch).size(), 2u);
}

TEST(DataLoader, WorksInATrainer) {
  auto group = make_self_group();
  torch::nn::Linear net(2, 1);
  DistributedSampler sampler(12, group->size(), group->rank());
  DataLoader loader(NumberDataset(12), sampler, {.batch_size = 2});
  Trainer trainer(net, group, {.epochs = 2, .accumulation_steps = 2});
  trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(1e-4));
  int batches = 0;
  const auto summaries =
      trainer.fit(loader,
                  [&](auto& model, auto& batch) {
                    ++batches;
                    return (model(batch.data).squeeze(1) - batch.target).square().mean();
                  },
                  {.sampler = &sampler});
  EXPECT_EQ(summaries.size(), 2u);
  EXPECT_EQ(batches, 12);
}

TEST(DataLoader, PutsBatchesOnTheGpuThroughPinnedMemory) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  const at::Device device(at::kCUDA, 0);
  DistributedSampler sampler(100, 1, 0);
  DataLoader loader(NumberDataset(100), sampler, {.batch_size = 8, .device = device});
  DrawnNumbers all;
  for (auto& batch : loader) {
    EXPECT_EQ(batch.data.device(), device);
    const auto target = batch.target.cpu();
    EXPECT_TRUE(batch.data.cpu().select(1, 0).equal(target.to(torch::kFloat)));
    for (const auto number : numbers_in({target, target})) all.push_back(number);
  }
  EXPECT_EQ(all, order_of(sampler));
}

TEST(DataLoader, RefusesWhatCannotBe) {
  const DistributedSampler sampler(4, 1, 0, {.shuffle = false});
  const auto refuse = [&](const DataLoaderOptions& options, const std::string& text) {
    EXPECT_THAT([&] { DataLoader(NumberDataset(4), sampler, options); },
                ThrowsMessage<UsageError>(HasSubstr(text)));
  };
  refuse({.batch_size = 0}, "batch_size is 0");
  refuse({.workers = -1}, "workers -1");
  refuse({.prefetch_factor = 0}, "prefetch_factor 0");
  refuse({.timeout = std::chrono::milliseconds(0)}, "timeout 0 ms");
  refuse({.device = at::Device(at::kXLA)}, "no device xla");
  DataLoader larger(NumberDataset(3), sampler, {.batch_size = 4});
  EXPECT_THAT([&] { larger.begin(); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("sample 3, rank 0 of 1: "),
                                              HasSubstr("the data set has 3 samples"))));
  struct Growing : torch::data::datasets::Dataset<Growing> {
    torch::data::Example<> get(std::size_t i) override {
      return {torch::zeros({static_cast<std::int64_t>(i)}), torch::tensor(0)};
    }
    c10::optional<std::size_t> size() const override { return 4; }
  };
  DataLoader growing(Growing(), sampler, {.batch_size = 2});
  EXPECT_THAT([&] { growing.begin(); },
              ThrowsMessage<UsageError>(HasSubstr("the data of sample 1 has another shape than the "
                                                  "data of sample 0 in its batch, which is [0]")));
}

}  // namespace
}  // namespace lockstep
