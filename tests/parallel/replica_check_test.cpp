// SPDX-License-Identifier: BSD-3-Clause
// The first forward of a DataParallel finds replicas that compute another function than the module,
// or outputs that do not fit together, and changes nothing else.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

const DataParallelOptions kTwoReplicas{.replicas = 2};

// Empty if the first forward is not refused.
template <class Net>
std::string refusal(Net net, const DataParallelOptions& options = kTwoReplicas,
                    const Tensor& batch = values({6, 4})) {
  DataParallel model(net, options);
  return message_of<UsageError>([&] { model(batch); });
}

// reset() gives a member that is not registered a value, as libtorch's own layers do.
struct ResetScaleImpl : torch::nn::Cloneable<ResetScaleImpl> {
  ResetScaleImpl() { reset(); }
  void reset() override {
    scale = 1;
    linear = register_module("linear", torch::nn::Linear(4, 2));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x) { return dropout(linear(x)) * scale; }
  double scale = 1;
  torch::nn::Linear linear{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(ResetScale);

// Its own scale is right; the scale of its submodule may not be.
struct ResetScaleInsideImpl : torch::nn::Cloneable<ResetScaleInsideImpl> {
  ResetScaleInsideImpl() { reset(); }
  void reset() override { inner = register_module("inner", ResetScale()); }
  Tensor forward(const Tensor& x) { return inner(x); }
  ResetScale inner{nullptr};
};
TORCH_MODULE(ResetScaleInside);

// A second handle on a registered parameter.
struct SecondHandleImpl : torch::nn::Cloneable<SecondHandleImpl> {
  SecondHandleImpl() { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(4, 2));
    weight = linear->weight;
  }
  Tensor forward(const Tensor& x) { return torch::matmul(x, weight.t()); }
  torch::nn::Linear linear{nullptr};
  Tensor weight;
};
TORCH_MODULE(SecondHandle);

TEST(ReplicaCheck, AMemberThatResetSetsIsNamedAlsoBesideDropout) {
  ResetScale net;
  net->scale = 3;
  EXPECT_THAT(refusal(net), AllOf(HasSubstr("ResetScale"), HasSubstr("output 0 differs by up to"),
                                  HasSubstr("calls reset()"), HasSubstr(".make_replica = ")));
  ResetScaleInside outer;
  outer->inner->scale = 3;
  EXPECT_THAT(refusal(outer), HasSubstr("does not compute what the module computes"));
  {
    const torch::NoGradGuard no_grad;
    net->eval();
    EXPECT_THAT(refusal(net), HasSubstr("output 0 differs"));
    net->to(at::kBFloat16);
    EXPECT_THAT(refusal(net, kTwoReplicas, values({6, 4}).to(at::kBFloat16)), HasSubstr("differs"));
  }
  const auto same = [] {
    auto made = std::make_shared<ResetScaleImpl>();
    made->scale = 3;
    return made;
  };
  EXPECT_EQ(refusal(net, {.replicas = 2, .make_replica = same}, values({6, 4}).to(at::kBFloat16)),
            "");
  EXPECT_EQ(refusal(ResetScale()), "");
}

TEST(ReplicaCheck, ASecondHandleOnAParameterIsNamed) {
  // With frozen or unrecorded parameters its stale values show, else the graph.
  {
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(refusal(SecondHandle()), HasSubstr("does not compute what the module computes"));
  }
  SecondHandle net;
  net->linear->weight.requires_grad_(false);
  EXPECT_THAT(refusal(net), HasSubstr("does not compute what the module computes"));

  // In replicas of make_replica the handle follows.
  SecondHandle good;
  DataParallel model(
      good, {.replicas = 2, .make_replica = [] { return std::make_shared<SecondHandleImpl>(); }});
  const Tensor batch = values({6, 4});
  const Tensor output = model(batch);
  expect_close(output, good->forward(batch), "output");
  output.sum().backward();
  EXPECT_TRUE(good->linear->weight.grad().defined());
}

TEST(ReplicaCheck, AGraphThatBeginsAtAnUnregisteredTensorIsNamed) {
  struct Outside : torch::nn::Module {
    Outside() { factor = torch::ones({4}).requires_grad_(true); }
    Tensor forward(const Tensor& x) { return x * factor; }
    Tensor factor;
  };
  const DataParallelOptions trusting{.replicas = 2, .trust_constructors = true};
  Outside net;
  DataParallel model(net, trusting);
  const Tensor batch = values({6, 4});
  {
    const torch::NoGradGuard no_grad;  // nothing is lost
    model(batch);
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(message_of<UsageError>([&] { model(batch); }),
                AllOf(HasSubstr("a tensor of shape [4]"), HasSubstr("gradient would be lost"),
                      HasSubstr("register the tensor")));
  }
}

TEST(ReplicaCheck, SamplesInAnotherDimensionAreNamed) {
  struct LstmImpl : torch::nn::Cloneable<LstmImpl> {
    LstmImpl() { reset(); }
    void reset() override {
      lstm = register_module(
          "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(3, 5).num_layers(2).batch_first(true)));
    }
    std::tuple<Tensor, std::tuple<Tensor, Tensor>> forward(const Tensor& x) { return lstm(x); }
    torch::nn::LSTM lstm{nullptr};
  };
  const auto net = std::make_shared<LstmImpl>();
  const auto factory = [] { return std::make_shared<LstmImpl>(); };
  // Parts of two samples look like the two layers.
  for (const int samples : {2, 4, 5}) {
    for (const DataParallelOptions& options :
         {kTwoReplicas, DataParallelOptions{.replicas = 2, .make_replica = factory}}) {
      EXPECT_THAT(refusal(net, options, values({samples, 6, 3})),
                  AllOf(HasSubstr("output 1 has its samples in dimension 1"),
                        HasSubstr("state.transpose(0, 1)")));
    }
  }
  // All samples in one dimension.
  torch::nn::GRU gru(torch::nn::GRUOptions(3, 5).num_layers(2));
  DataParallel model(gru, {.replicas = 2, .dim = 1});
  const auto [output, state] = model(values({6, 5, 3}));
  EXPECT_EQ(state.sizes(), (at::IntArrayRef{2, 5, 5}));
  expect_close(state, std::get<1>(gru->forward(values({6, 5, 3}))), "state");
}

TEST(ReplicaCheck, PartsOfOtherShapesAreNamed) {
  struct Cut : torch::nn::Module {  // as far as the longest of its samples
    Tensor forward(const Tensor& x) { return x.slice(1, 0, x[0][0].item<std::int64_t>()); }
  };
  Cut net;
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  Tensor batch = torch::ones({4, 3});
  EXPECT_EQ(model(batch).sizes(), (at::IntArrayRef{4, 1}));
  batch[2][0] = 2;
  EXPECT_THAT(message_of<UsageError>([&] { model(batch); }),
              AllOf(HasSubstr("output 0 is [2, 1] in replica 0 and [2, 2] in another one"),
                    HasSubstr(".dim")));
}

// Neither its statistics nor its calls may show that it was checked.
struct StatefulImpl : torch::nn::Cloneable<StatefulImpl> {
  StatefulImpl() { reset(); }
  void reset() override {
    calls = 0;
    linear = register_module("linear", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    forwards = register_parameter("forwards", torch::zeros({}), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) {
    forwards.add_(1);
    return dropout(norm(linear(x))) + ++calls;
  }
  int calls = 0;
  Tensor forwards;
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Stateful);

TEST(ReplicaCheck, ChangesNothing) {
  Stateful net, reference;
  copy_state(*reference, *net);
  DataParallel model(net, kTwoReplicas);
  const Tensor batch = values({8, 4});
  const Tensor earlier = net->norm(batch[0].expand({2, 4}).contiguous());  // not yet differentiated
  reference->norm(batch[0].expand({2, 4}).contiguous());
  torch::manual_seed(5);
  model(batch).sum().backward();
  const Tensor drawn = torch::rand({4});
  torch::manual_seed(5);
  // Whatever the order of the replicas: their draws together.
  torch::nn::Dropout(0.5)(torch::ones({4, 4}));
  torch::nn::Dropout(0.5)(torch::ones({4, 4}));
  EXPECT_TRUE(torch::equal(torch::rand({4}), drawn));
  reference->forward(batch.slice(0, 0, 4));
  expect_close(net->norm->running_mean, reference->norm->running_mean, "mean");
  EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 2);
  EXPECT_EQ(net->calls, 0);
  EXPECT_EQ(net->forwards.item<float>(), 2);  // of the replicas
  EXPECT_TRUE(net->linear->weight.grad().defined());
  earlier.sum().backward();
}

TEST(ReplicaCheck, AStateThatResetClearsIsNoDifference) {
  Stateful net;
  net->eval();
  net->forward(values({3, 4}));  // the module counts on, its replicas begin
  EXPECT_EQ(refusal(net), "");
}

TEST(ReplicaCheck, LeavesTheCacheOfAutocastAlone) {
  torch::nn::Sequential net{torch::nn::Linear(3, 3)};
  DataParallel model(net, kTwoReplicas);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, false);
  model(values({4, 3}));
  const Tensor output = model(values({1, 3}));  // by the module, whose weights the check used
  at::autocast::clear_cache();
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, true);
  ASSERT_TRUE(output.requires_grad());
  output.sum().backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
}

TEST(ReplicaCheck, ExceptionsAreLeftToTheRealForward) {
  torch::nn::Sequential net{torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4)};
  DataParallel model(net, kTwoReplicas);
  EXPECT_THROW(model(values({2, 4})), ReplicaFailed);  // one sample for each BatchNorm
  EXPECT_EQ(model(values({4, 4})).size(0), 4);
}

}  // namespace
}  // namespace lockstep::testing
