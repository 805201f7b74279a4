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
  DataParallel model(net, {.replicas = 3});
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
  DataParallel model(net, {.replicas = 3});
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
  DataParallel model(net, {.replicas = 2});
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

// Has neither clone() nor a default constructor.
struct SizedImpl : torch::nn::Module {
  explicit SizedImpl(int width, double dropout_rate = 0) {
    linear = register_module("linear", torch::nn::Linear(2, width));
    dropout = register_module("dropout", torch::nn::Dropout(dropout_rate));
  }
  Tensor forward(const Tensor& x) { return dropout(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Sized);

struct DefaultSizedImpl : SizedImpl {
  explicit DefaultSizedImpl(int width = 3, double dropout_rate = 0)
      : SizedImpl(width, dropout_rate) {}
};
TORCH_MODULE(DefaultSized);

template <class Net>
std::string replication_error(Net net, const DataParallelOptions& options = {.replicas = 2}) {
  DataParallel model(net, options);
  return message_of<UsageError>([&] { model(values({4, 2})).sum().backward(); });
}

TEST(DataParallelErrors, ModulesThatCannotBeReplicatedAreNamedAndMayBringAFactory) {
  EXPECT_THAT(replication_error(Sized(4)),
              AllOf(HasSubstr("Sized"), HasSubstr("clone() has not been implemented"),
                    HasSubstr("default constructor: there is none"), HasSubstr("make_replica")));
  EXPECT_EQ(replication_error(DefaultSized(3)), "");
  EXPECT_THAT(replication_error(DefaultSized(4)),
              HasSubstr("its parameter linear.weight is [3, 2] instead of [4, 2]"));
  EXPECT_THAT(replication_error(DefaultSized(3, 0.5)), HasSubstr("it prints differently"));

  const auto made_by = [](ModuleFactory factory) {
    return DataParallelOptions{.replicas = 2, .make_replica = std::move(factory)};
  };
  EXPECT_EQ(replication_error(Sized(4), made_by([] { return std::make_shared<SizedImpl>(4); })),
            "");
  EXPECT_THAT(
      replication_error(Sized(4), made_by([] { return std::make_shared<SizedImpl>(5); })),
      HasSubstr("make_replica did not make a module like the wrapped one: its parameter linear"));
  EXPECT_THAT(replication_error(Sized(4), made_by([] { return std::make_shared<MlpImpl>(); })),
              HasSubstr("of another type"));
  EXPECT_THAT(replication_error(Sized(4), made_by([] { return nullptr; })),
              HasSubstr("it is null"));
}

// Inherits the clone() of its base class, which makes no such module.
struct ScaledLinearImpl : torch::nn::LinearImpl {
  ScaledLinearImpl() : LinearImpl(2, 3) {}
  explicit ScaledLinearImpl(double factor) : LinearImpl(2, 3), scale(factor) {}
  Tensor forward(const Tensor& x) { return LinearImpl::forward(x) * scale; }
  double scale = 2;
};
TORCH_MODULE(ScaledLinear);

TEST(DataParallelErrors, AClonedBaseClassIsNoReplica) {
  ScaledLinear net;
  DataParallel model(net, {.replicas = 2});
  expect_close(model(values({4, 2})), net->forward(values({4, 2})), "by the default constructor");
  EXPECT_THAT(replication_error(torch::nn::Sequential(ScaledLinear())),
              HasSubstr("lacks submodule 0"));
}

}  // namespace
}  // namespace lockstep::testing
