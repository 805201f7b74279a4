// SPDX-License-Identifier: BSD-3-Clause
// convert_sync_batchnorm: what it replaces, what stays, and what it refuses.
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/instancenorm.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Group = std::shared_ptr<ProcessGroup>;
using Options = torch::nn::BatchNormOptions;

// A BatchNorm that forward calls by its type, unless Norm is lockstep's.
template <class Norm>
struct BlockImpl : torch::nn::Cloneable<BlockImpl<Norm>> {
  BlockImpl() { reset(); }
  void reset() override {
    layers = this->register_module(
        "layers", torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3)));
    norm = this->register_module("norm", Norm(3));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(layers->forward(x)); }
  torch::nn::Sequential layers{nullptr};
  Norm norm{nullptr};
};

// A Sequential as part of another one.
struct CallsSequential : torch::nn::Module {
  explicit CallsSequential(torch::nn::Sequential sequential)
      : layers(register_module("layers", std::move(sequential))) {}
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

SyncBatchNormImpl& norm_of(torch::nn::SequentialImpl& net, std::size_t index) {
  return *net.ptr<SyncBatchNormImpl>(index);
}

TEST(ConvertSyncBatchNorm, SharesTensorsAndKeepsOptions) {
  run_rank_threads(2, [](const Group& group) {
    torch::nn::BatchNorm1d one(Options(3).momentum(c10::nullopt).eps(0.25));
    torch::nn::BatchNorm2d two(Options(3).affine(false));
    torch::nn::BatchNorm3d three(Options(3).track_running_stats(false));
    one->weight.requires_grad_(false);
    two->eval();
    torch::nn::Sequential net(one, two, three);
    const auto parameters = net->named_parameters();
    const auto buffers = net->named_buffers();
    convert_sync_batchnorm(net, group);

    const auto is_same = [](const auto& actual, const auto& expected) {
      ASSERT_EQ(actual.keys(), expected.keys());
      for (const auto& item : actual) EXPECT_TRUE(item.value().is_same(expected[item.key()]));
    };
    is_same(net->named_parameters(), parameters);
    is_same(net->named_buffers(), buffers);
    EXPECT_TRUE(norm_of(*net, 0).weight.is_same(one->weight));
    EXPECT_TRUE(norm_of(*net, 0).running_var.is_same(one->running_var));
    EXPECT_FALSE(norm_of(*net, 0).weight.requires_grad());
    EXPECT_TRUE(norm_of(*net, 0).bias.requires_grad());
    EXPECT_TRUE(norm_of(*net, 0).is_training());
    EXPECT_FALSE(norm_of(*net, 1).is_training());
    EXPECT_FALSE(norm_of(*net, 1).weight.defined());
    EXPECT_FALSE(norm_of(*net, 2).running_mean.defined());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(norm_of(*net, i).group(), group);
    std::ostringstream text;
    text << net;
    EXPECT_THAT(text.str(),
                AllOf(HasSubstr("SyncBatchNorm(3, eps=0.25, momentum=None, affine=true"),
                      HasSubstr("affine=false"), HasSubstr("track_running_stats=false"),
                      Not(HasSubstr("torch::nn::BatchNorm"))));
  });
}

TEST(ConvertSyncBatchNorm, ReachesSequentialsAtAnyDepthAndDeclaredMembers) {
  run_rank_threads(2, [](const Group& group) {
    struct Outer : torch::nn::Module {
      Outer() { block = register_module("block", std::make_shared<BlockImpl<SyncBatchNorm>>()); }
      std::shared_ptr<BlockImpl<SyncBatchNorm>> block;
    };
    Outer net;
    set_weights(net, 2);
    const auto before = net.parameters();
    const at::Tensor whole = values({6, 4});
    const at::Tensor mine = part(whole, group->rank(), 2);
    const at::Tensor expected = part(net.block->forward(whole), group->rank(), 2);
    convert_sync_batchnorm(net, *group);
    for (int again = 0; again < 2; ++again) {
      EXPECT_TRUE(torch::allclose(net.block->forward(mine), expected, 1e-5, 1e-6));
      EXPECT_EQ(net.block->norm->group(), group);
      convert_sync_batchnorm(net, group);  // nothing is left to replace
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(net.parameters()[i].is_same(before[i]));
    }
    // Clones have the group, too.
    const auto copy = std::dynamic_pointer_cast<BlockImpl<SyncBatchNorm>>(net.block->clone());
    EXPECT_EQ(copy->norm->group(), group);
    EXPECT_TRUE(copy->forward(mine).equal(net.block->forward(mine)));
  });
}

TEST(ConvertSyncBatchNorm, WhatIsUsedTwiceStaysOneModule) {
  run_rank_threads(2, [](const Group& group) {
    torch::nn::BatchNorm1d norm(3);
    torch::nn::Sequential inner(norm);
    torch::nn::Sequential net(norm, torch::nn::ReLU(), norm);
    net->push_back(torch::nn::AnyModule(std::make_shared<CallsSequential>(inner)));
    convert_sync_batchnorm(net, group);
    const auto first = net->ptr<SyncBatchNormImpl>(0);
    EXPECT_EQ(net->ptr<SyncBatchNormImpl>(2), first);
    EXPECT_EQ(inner->ptr<SyncBatchNormImpl>(0), first);
    EXPECT_EQ(first->group(), group);
    net->forward(values({4, 3}, group->rank()));
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 3);
  });
}

TEST(ConvertSyncBatchNorm, RefusesWhatCodeCallsByItsType) {
  run_rank_threads(2, [](const Group& group) {
    const auto block = std::make_shared<BlockImpl<torch::nn::BatchNorm1d>>();
    torch::nn::Sequential net(block, torch::nn::BatchNorm1d(3));
    EXPECT_THAT(message_of<UsageError>([&] { convert_sync_batchnorm(net, group); }),
                AllOf(HasSubstr("[convert_sync_batchnorm] rank " + std::to_string(group->rank())),
                      HasSubstr("cannot replace 0.norm:"), HasSubstr("lockstep::SyncBatchNorm"),
                      HasSubstr("unchanged")));
    EXPECT_NE(net->ptr(1)->as<torch::nn::BatchNorm1d>(), nullptr);
    EXPECT_NE(block->layers->ptr(1)->as<torch::nn::BatchNorm1d>(), nullptr);

    torch::nn::ModuleList list(torch::nn::BatchNorm2d(3));
    EXPECT_THAT(message_of<UsageError>([&] { convert_sync_batchnorm(list, group); }),
                HasSubstr("cannot replace 0:"));
    torch::nn::BatchNorm2d norm(3);
    EXPECT_THAT(message_of<UsageError>([&] { convert_sync_batchnorm(norm, group); }),
                HasSubstr("cannot replace the net itself:"));
    torch::jit::Module script("Net");
    script.register_module("norm", torch::jit::Module("__torch__.torch.nn.modules.BatchNorm2d"));
    ScriptModule scripted(script);
    EXPECT_THAT(message_of<UsageError>([&] { convert_sync_batchnorm(scripted, group); }),
                HasSubstr("cannot replace norm:"));
    EXPECT_THAT(message_of<UsageError>([&] { convert_sync_batchnorm(net, nullptr); }),
                HasSubstr("the group is null"));
    torch::nn::Sequential without(torch::nn::Linear(2, 2), torch::nn::InstanceNorm1d(2));
    convert_sync_batchnorm(without, group);
    EXPECT_NE(without->ptr(1)->as<torch::nn::InstanceNorm1d>(), nullptr);
  });
}

TEST(ConvertSyncBatchNorm, WrappersRefuseNormsThatTheyCannotServe) {
  run_rank_threads(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), SyncBatchNorm(2));
    EXPECT_THAT(message_of<UsageError>([&] { DistributedDataParallel(net, group); }),
                AllOf(HasSubstr("SyncBatchNorm 1 has no group"),
                      HasSubstr("convert_sync_batchnorm(net, group)")));
    const DataParallel replicated(net, {.replicas = 2});  // a BatchNorm so far
    convert_sync_batchnorm(net, group);
    EXPECT_THAT(message_of<UsageError>([&] { DataParallel(net, {.replicas = 2}); }),
                AllOf(HasSubstr("SyncBatchNorm 1"), HasSubstr("replicas cannot do")));
  });
}

}  // namespace
}  // namespace lockstep::testing
