// SPDX-License-Identifier: BSD-3-Clause
// What both wrappers can do as holders: be members, be assigned, saved and passed to functions.
#include "lockstep/parallel/parallel_module.h"

#include <sstream>

#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// Functions for any wrapped model, without being templates.
at::Tensor run(ParallelModule& model, const at::Tensor& input) {
  return model(input);
}
double train(DistributedDataParallelBase& model, const at::Tensor& input) {
  const at::Tensor loss = model.forward(input).square().mean();
  loss.backward();
  return loss.item<double>();
}
std::uint64_t bytes_moved(const DataParallelBase& model) {
  return model.bytes_moved();
}

struct Trainer {
  DistributedDataParallel<Mlp> model = nullptr;
  DataParallel<torch::nn::Sequential> on_cores;
  std::vector<DistributedDataParallel<torch::nn::Linear>> several;
};

TEST(ParallelModule, WrappersAreMembersAndAreAssigned) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer;
    EXPECT_TRUE(trainer.model.is_empty());
    EXPECT_FALSE(trainer.on_cores);
    Mlp net;
    trainer.model = DistributedDataParallel(net, group);
    trainer.on_cores = DataParallel(torch::nn::Sequential(torch::nn::Linear(6, 2)));
    EXPECT_EQ(trainer.on_cores(values({4, 6})).size(1), 2);
    for (int i = 0; i < 3; ++i) trainer.several.emplace_back(torch::nn::Linear(6, 3), group);
    for (auto& model : trainer.several) {
      model(values({2, 6}, group->rank())).sum().backward();
      EXPECT_TRUE(model->module()->weight.grad().defined());
    }
    const Trainer moved = std::move(trainer);
    DistributedDataParallel<Mlp> shared = moved.model;
    shared(values({2, 6}, group->rank())).sum().backward();
    EXPECT_TRUE(net->last->weight.grad().defined());
    // A part of a larger module, too.
    struct Outer : torch::nn::Module {
      explicit Outer(const DistributedDataParallel<Mlp>& wrapped)
          : part(register_module("part", wrapped)) {}
      DistributedDataParallel<Mlp> part;
    };
    const auto outer = std::make_shared<Outer>(shared);
    EXPECT_EQ(outer->parameters().size(), net->parameters().size());
  });
}

TEST(ParallelModule, FunctionsTakeAnyWrappedModel) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    auto ddp = DistributedDataParallel(net, group);
    auto dp = DataParallel(net, {.replicas = 2});
    const at::Tensor input = values({4, 6});
    expect_close(run(ddp, input), net(input), "ddp");
    expect_close(run(*dp, input), net(input), "dp");
    EXPECT_GT(train(ddp, input), 0);
    EXPECT_TRUE(net->last->weight.grad().defined());
    EXPECT_GT(bytes_moved(dp), 0u);
  });
}

TEST(ParallelModule, ForwardWithOtherArgumentsIsAUsageError) {
  struct Pair : torch::nn::Module {
    Pair() { linear = register_module("linear", torch::nn::Linear(6, 2)); }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return linear(x + y); }
    torch::nn::Linear linear{nullptr};
  };
  auto model = DataParallel(std::make_shared<Pair>());
  try {
    run(model, values({4, 6}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not take one tensor and return one"));
  }
  EXPECT_EQ(model(values({1, 6}), values({1, 6})).size(1), 2);
}

// A wrapper and its module write the same file, and both read it.
TEST(ParallelModule, AWrapperIsSavedAsItsModule) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    auto ddp = DistributedDataParallel(net, group);
    auto dp = DataParallel(net);
    for (const auto save : {0, 1}) {
      std::stringstream file;
      if (save == 0) {
        torch::save(ddp, file);
      } else {
        torch::save(dp, file);
      }
      Mlp alone;
      torch::load(alone, file);
      EXPECT_TRUE(alone->hidden->weight.equal(net->hidden->weight));
    }
    Mlp other;
    std::stringstream file;
    torch::save(other, file);
    torch::load(ddp, file);
    EXPECT_TRUE(net->hidden->weight.equal(other->hidden->weight));
  });
}

TEST(ParallelModule, PointersAreWrappedWithTheirOwner) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    auto ddp = DistributedDataParallel(net.get(), *group);
    auto dp = DataParallel(net.get());
    EXPECT_EQ(ddp->module().get(), net.get());
    EXPECT_EQ(dp->module().get(), net.get());
    const std::weak_ptr<MlpImpl> watch = net.ptr();
    net = nullptr;
    EXPECT_FALSE(watch.expired());
    MlpImpl* const none = nullptr;
    EXPECT_THROW(DataParallel{none}, UsageError);
  });
}

TEST(ParallelModule, GpusHaveNumbers) {
  const DataParallelOptions options{.device_ids = {0, 1, 2}};
  ASSERT_EQ(options.device_ids.size(), 3u);
  EXPECT_EQ(at::Device(options.device_ids[2]), at::Device(at::kCUDA, 2));
  const DistributedDataParallelOptions mixed{.device_ids = {at::kCPU}};
  EXPECT_EQ(at::Device(mixed.device_ids[0]), at::Device(at::kCPU));
  for (const int none : {-1, 128, 256}) {
    EXPECT_THAT(
        [&] { static_cast<void>(DataParallelOptions{.device_ids = {none}}); },
        ::testing::ThrowsMessage<UsageError>("device_ids names GPU " + std::to_string(none) +
                                             "; give a number from 0 to 127"));
  }
}

TEST(ParallelModule, NoSyncInALoop) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    Mlp alone;
    auto model = DistributedDataParallel(net, group);
    copy_state(*alone, *net);
    const auto input = [&](int rank, int part) { return values({2, 6}, 10 * rank + part); };
    NoSync last(nullptr);
    for (int part = 0; part < 3; ++part) {
      last = model->no_sync(part < 2);
      model(input(group->rank(), part)).square().sum().backward();
      for (int rank = 0; rank < 2; ++rank) {
        (alone(input(rank, part)).square().sum() / 2).backward();
      }
    }
    expect_same_gradients(*net, *alone);
  });
}

}  // namespace
}  // namespace lockstep::testing
