// SPDX-License-Identifier: BSD-3-Clause
// What DataParallel refuses, and what it does with what replicas throw.
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Throws for a batch, or a part of one, with a number above 1 (forward) or below -1 (backward).
struct BrittleImpl : torch::nn::Module {
  BrittleImpl() { linear = register_module("linear", torch::nn::Linear(2, 2)); }
  Tensor forward(const Tensor& x) {
    if (x.max().item<float>() > 1) throw std::invalid_argument("a number above 1");
    const Tensor y = linear(x);
    return x.min().item<float>() < -1 ? ThrowsInBackward::apply(y) : y;
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Brittle);

Tensor with_sample(int sample, double value) {
  Tensor batch = torch::zeros({6, 2});
  batch[sample].fill_(value);
  return batch;
}

TEST(DataParallelErrors, AnExceptionInForwardNamesItsReplica) {
  Brittle net;
  DataParallel model(net, {.replicas = 3, .trust_constructors = true});
  for (const int sample : {0, 3, 5}) {
    try {
      model(with_sample(sample, 2));
      FAIL() << "no error";
    } catch (const ReplicaFailed& error) {
      EXPECT_EQ(error.replica(), sample / 2);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("forward of replica"), HasSubstr(" of 3: "),
                                      HasSubstr("a number above 1")));
      EXPECT_THROW(std::rethrow_exception(error.cause()), std::invalid_argument);
    }
    model(torch::zeros({6, 2})).sum().backward();
    EXPECT_TRUE(net->linear->weight.grad().defined());
  }
}

TEST(DataParallelErrors, AnExceptionInBackwardNamesItsReplica) {
  Brittle net;
  DataParallel model(net, {.replicas = 3, .trust_constructors = true});
  for (const int sample : {0, 3, 5}) {
    reset_gradients(*net);
    const Tensor loss = model(with_sample(sample, -2)).sum();
    try {
      loss.backward();
      FAIL() << "no error";
    } catch (const ReplicaFailed& error) {
      EXPECT_EQ(error.replica(), sample / 2);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("backward of replica"), HasSubstr("own mistake")));
    }
    EXPECT_FALSE(net->linear->weight.grad().defined());
    model(torch::zeros({6, 2})).sum().backward();
    EXPECT_TRUE(net->linear->weight.grad().defined());
  }
}

TEST(DataParallelErrors, CreateGraphIsNamed) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  const Tensor output = model(values({4, 6})).sum();
  EXPECT_THAT(message_of<UsageError>([&] { output.backward({}, true, true); }),
              HasSubstr("create_graph"));
  EXPECT_FALSE(net->hidden->weight.grad().defined());
  output.backward();
  EXPECT_TRUE(net->hidden->weight.grad().defined());
}

TEST(DataParallelErrors, ASecondBackwardThroughAFreedGraphIsNamed) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  const Tensor output = model(values({4, 6}));
  output.sum().backward();
  EXPECT_THAT(message_of<Error>([&] { output.sum().backward(); }), HasSubstr("retain_graph"));
}

TEST(DataParallelErrors, AParameterChangedBeforeItsBackwardIsAnErrorAsWithoutReplicas) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  const Tensor loss = model(values({4, 6})).sum();
  {
    const torch::NoGradGuard no_grad;
    net->last->weight.add_(1);
  }
  EXPECT_THAT(message_of<ReplicaFailed>([&] { loss.backward(); }), HasSubstr("inplace operation"));
}

TEST(DataParallelErrors, ContradictoryOptionsAreNamed) {
  Mlp net;
  const auto message = [&](const DataParallelOptions& options) {
    return message_of<UsageError>([&] { DataParallel model(net, options); });
  };
  EXPECT_THAT(message({.replicas = -1}), HasSubstr("replicas is -1"));
  EXPECT_THAT(message({.dim = -1}), HasSubstr("dim is -1"));
  EXPECT_THAT(message({.device_ids = {at::kCPU}, .replicas = 2}), HasSubstr("both device_ids and"));
  EXPECT_THAT(message_of<UsageError>([] { DataParallel model(Mlp(nullptr)); }),
              HasSubstr("the module is empty"));
}

TEST(DataParallelErrors, AModuleOnTheWrongDeviceIsNamed) {
  Mlp net;
  DataParallel model(net, {.device_ids = {at::Device(at::kCUDA, 1)}});
  EXPECT_THAT(message_of<UsageError>([&] {
                model(values({4, 6}));
              }),
              HasSubstr("the module is on cpu, but device_ids begins with cuda:1"));
}

TEST(DataParallelErrors, InputsAndOutputsThatDoNotFitAreNamed) {
  struct Odd : torch::nn::Module {
    std::vector<Tensor> forward(const Tensor& x, const Tensor& y, const std::string& how) {
      const bool first = x[0].item<float>() == 0;
      if (how == "count" && first) return {x, y};
      if (how == "undefined" && first) return {Tensor()};
      if (how == "dimensions" && first) return {x.sum()};
      return {x};
    }
  };
  Odd net;
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  const Tensor x = torch::arange(4);
  const auto message = [&](const Tensor& y, const char* how) {
    return message_of<UsageError>([&] { model(x, y, how); });
  };
  EXPECT_THAT(message(torch::zeros({5}), ""), HasSubstr("4 elements in one input and 5"));
  EXPECT_THAT(message(x, "count"), HasSubstr("returned 2 tensors and another one 1"));
  EXPECT_THAT(message(x, "undefined"), HasSubstr("output 0 is undefined in some replicas"));
  EXPECT_THAT(message(x, "dimensions"), HasSubstr("output 0 has 0 dimensions"));
  EXPECT_EQ(message(x, ""), "");
}

}  // namespace
}  // namespace lockstep::testing
