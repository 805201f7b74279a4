// SPDX-License-Identifier: BSD-3-Clause
// Which modules DataParallel takes for another one's replica, and which it refuses.
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/dropout.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Empty if the model computes what its module computes; otherwise its error.
template <class Net>
std::string replication_error(Net net, const DataParallelOptions& options = {.replicas = 2}) {
  const torch::NoGradGuard no_grad;
  const Tensor batch = values({4, 2});
  DataParallel model(net, options);
  return message_of<UsageError>([&] {
    const Tensor output = model(batch);
    expect_close(output, model->module()->forward(batch), "output");
  });
}

const DataParallelOptions kTrusting{.replicas = 2, .trust_constructors = true};

DataParallelOptions made_by(ModuleFactory factory) {
  return {.replicas = 2, .make_replica = std::move(factory)};
}

// Has neither clone() nor a default constructor.
struct SizedImpl : torch::nn::Module {
  explicit SizedImpl(int width, double dropout_rate = 0) {
    linear = register_module("linear", torch::nn::Linear(2, width));
    dropout = register_module("dropout", torch::nn::Dropout(dropout_rate));
    dropout->eval();
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

TEST(ReplicaFactory, AModuleThatCannotBeReplicatedIsNamedAndMayBringAFactory) {
  EXPECT_THAT(replication_error(Sized(4)),
              AllOf(HasSubstr("Sized"), HasSubstr("clone() has not been implemented"),
                    HasSubstr("default constructor: there is none"), HasSubstr("make_replica")));
  EXPECT_EQ(replication_error(DefaultSized(3), kTrusting), "");
  EXPECT_THAT(replication_error(DefaultSized(4), kTrusting),
              HasSubstr("its parameter linear.weight is [3, 2] instead of [4, 2]"));
  EXPECT_THAT(replication_error(DefaultSized(3, 0.5), kTrusting),
              HasSubstr("it prints differently"));

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

// What they compute depends on a member that is not registered.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(double by = 1) : factor(by) {
    weight = register_parameter("weight", torch::ones({2}));
  }
  Tensor forward(const Tensor& x) { return x * weight * factor; }
  double factor;
  Tensor weight;
};
TORCH_MODULE(Scaled);

struct CloneableScaledImpl : torch::nn::Cloneable<CloneableScaledImpl> {
  explicit CloneableScaledImpl(double by = 1) : factor(by) { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({2})); }
  Tensor forward(const Tensor& x) { return x * weight * factor; }
  double factor;
  Tensor weight;
};
TORCH_MODULE(CloneableScaled);

TEST(ReplicaFactory, ADefaultConstructedModuleIsNoReplicaUnlessItsUserSaysSo) {
  EXPECT_THAT(replication_error(Scaled(3)),
              AllOf(HasSubstr("members that are not registered may have other values"),
                    HasSubstr("torch::nn::Cloneable"), HasSubstr(".make_replica = "),
                    HasSubstr(".trust_constructors = true")));
  EXPECT_THAT(replication_error(Scaled(1)), HasSubstr("cannot make a replica of"));
  EXPECT_EQ(replication_error(CloneableScaled(3)), "");
  EXPECT_EQ(replication_error(Scaled(3), made_by([] { return std::make_shared<ScaledImpl>(3); })),
            "");
  EXPECT_EQ(replication_error(Scaled(1), kTrusting), "");
}

// Forwards to a submodule. Its clone() makes a submodule without a clone() by reset().
template <class Inner>
struct OuterImpl : torch::nn::Cloneable<OuterImpl<Inner>> {
  OuterImpl() { reset(); }
  void reset() override { inner = this->register_module("inner", Inner()); }
  Tensor forward(const Tensor& x) { return inner(x); }
  Inner inner{nullptr};
};

TEST(ReplicaFactory, AClonedModuleIsNoReplicaIfASubmoduleWasConstructed) {
  const auto outer = [](auto inner, double factor) {
    const auto net = std::make_shared<OuterImpl<decltype(inner)>>();
    net->inner->factor = factor;
    return net;
  };
  EXPECT_THAT(replication_error(outer(Scaled(), 3)),
              HasSubstr("it copies nothing of submodule inner, a"));
  EXPECT_EQ(replication_error(outer(Scaled(), 1), kTrusting), "");
  EXPECT_EQ(replication_error(outer(CloneableScaled(), 3)), "");

  using torch::nn::Linear;
  using torch::nn::Sequential;
  EXPECT_THAT(replication_error(Sequential(Linear(2, 2), Scaled(3))),
              AllOf(HasSubstr("cannot make a replica of torch::nn::Sequential"),
                    HasSubstr("clone() has not been implemented for")));
  EXPECT_EQ(replication_error(Sequential(Linear(2, 2), CloneableScaled(3))), "");
}

// Inherits the clone() of its base class, which makes no such module.
struct ScaledLinearImpl : torch::nn::LinearImpl {
  ScaledLinearImpl() : LinearImpl(2, 3) {}
  Tensor forward(const Tensor& x) { return LinearImpl::forward(x) * scale; }
  double scale = 2;
};
TORCH_MODULE(ScaledLinear);

TEST(ReplicaFactory, AClonedBaseClassIsNoReplica) {
  EXPECT_THAT(replication_error(ScaledLinear()), HasSubstr("is of another type"));
  EXPECT_EQ(replication_error(ScaledLinear(), kTrusting), "");
  EXPECT_THAT(replication_error(torch::nn::Sequential(ScaledLinear())),
              HasSubstr("lacks submodule 0"));
}

}  // namespace
}  // namespace lockstep::testing
