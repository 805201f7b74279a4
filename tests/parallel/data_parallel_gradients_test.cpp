// SPDX-License-Identifier: BSD-3-Clause
// Gradients equal the gradients of the unwrapped module with the whole batch, in every use of
// autograd.
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

using at::Tensor;

// Replicas in the module's memory, and replicas with their own, as on other devices.
const std::vector<DataParallelOptions> kOptions = {
    {.replicas = 2, .trust_constructors = true},
    {.replicas = 3, .trust_constructors = true},
    {.replicas = 3, .trust_constructors = true, .share_parameters = false}};

// Trains a model and its unwrapped copy side by side.
template <class Net>
void compare(Net net, Net reference, const Tensor& batch, void (*clear)(torch::nn::Module&)) {
  for (const DataParallelOptions& options : kOptions) {
    copy_state(*reference, *net);
    DataParallel model(net, options);
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    torch::optim::SGD reference_optimizer(reference->parameters(), 0.01);
    reset_gradients(*net);
    reset_gradients(*reference);
    for (int step = 0; step < 5; ++step) {
      clear(*net);
      clear(*reference);
      model(batch).square().mean().backward();
      reference->forward(batch).square().mean().backward();
      expect_same_gradients(*net, *reference);
      optimizer.step();
      reference_optimizer.step();
    }
  }
}

TEST(DataParallelGradients, TrainLikeTheUnwrappedModule) {
  compare(Mlp(), Mlp(), values({12, 6}), reset_gradients);
  compare(Mlp(), Mlp(), values({11, 6}), zero_gradients);
  compare(ConvNet(), ConvNet(), values({5, 2, 8, 8}), reset_gradients);
}

TEST(DataParallelGradients, NotClearedAccumulate) {
  compare(Mlp(), Mlp(), values({12, 6}), [](torch::nn::Module&) {});
}

TEST(DataParallelGradients, OfSharedParametersAreAddedUp) {
  compare(Tied(), Tied(), values({5, 6}), reset_gradients);
}

// A clone does not share what its original shares between submodules.
struct ClonedTiedImpl : torch::nn::Cloneable<ClonedTiedImpl> {
  ClonedTiedImpl() { reset(); }
  void reset() override {
    in = register_module("in", torch::nn::Linear(6, 6));
    weight = register_parameter("weight", in->weight);
  }
  Tensor forward(const Tensor& x) {
    return torch::nn::functional::linear(torch::tanh(in(x)), weight);
  }
  torch::nn::Linear in{nullptr};
  Tensor weight;
};
TORCH_MODULE(ClonedTied);

TEST(DataParallelGradients, OfSharedParametersThatAReplicaHasTwice) {
  compare(ClonedTied(), ClonedTied(), values({5, 6}), reset_gradients);
}

TEST(DataParallelGradients, OfLargeModelsAreAddedByAllReplicas) {
  const auto wide = [] {
    return torch::nn::Sequential(torch::nn::Linear(6, 300), torch::nn::Tanh(),
                                 torch::nn::Linear(300, 300), torch::nn::Linear(300, 2));
  };
  compare(wide(), wide(), values({9, 6}), reset_gradients);
}

TEST(DataParallelGradients, HaveTheSameBitsInEveryRun) {
  Mlp net;
  const auto gradients = [&] {
    DataParallel model(net, {.replicas = 3});
    reset_gradients(*net);
    model(values({30, 6})).square().mean().backward();
    std::vector<Tensor> result;
    for (const Tensor& parameter : net->parameters()) result.push_back(parameter.grad().clone());
    return result;
  };
  const auto first = gradients();
  for (int run = 0; run < 20; ++run) {
    const auto again = gradients();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(again[i], first[i]));
  }
}

TEST(DataParallelGradients, FrozenParametersGetNoneAndMayThaw) {
  for (const DataParallelOptions& options : kOptions) {
    Mlp net;
    DataParallel model(net, options);
    for (const bool frozen : {true, false, true}) {
      reset_gradients(*net);
      net->middle->weight.set_requires_grad(!frozen);
      model(values({6, 6})).sum().backward();
      EXPECT_EQ(net->middle->weight.grad().defined(), !frozen);
      EXPECT_TRUE(net->hidden->weight.grad().defined());
    }
    for (Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
    EXPECT_FALSE(model(values({6, 6})).requires_grad());
  }
}

// Uses the second layer only for the samples whose first value is large.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl() {
    always = register_module("always", torch::nn::Linear(2, 2));
    sometimes = register_module("sometimes", torch::nn::Linear(2, 2));
    never = register_module("never", torch::nn::Linear(2, 2));
  }
  Tensor forward(const Tensor& x) {
    const Tensor large = (x.select(1, 0) > 1).nonzero().squeeze(1);
    const Tensor y = always(x);
    if (large.numel() == 0) return y;
    return y.index_add(0, large, sometimes(x.index_select(0, large)));
  }
  torch::nn::Linear always{nullptr}, sometimes{nullptr}, never{nullptr};
};
TORCH_MODULE(Sometimes);

TEST(DataParallelGradients, UnusedParametersStayWithoutOne) {
  for (const DataParallelOptions& options : kOptions) {
    Sometimes net, reference;
    copy_state(*reference, *net);
    DataParallel model(net, options);
    Tensor batch = torch::zeros({6, 2});
    for (const int used : {0, 1, 5}) {  // by no replica, by the first, by the first and the last
      batch[used][0] = used > 0 ? 2 : 0;
      if (used == 1) batch[0][0] = 2;
      reset_gradients(*net);
      reset_gradients(*reference);
      model(batch).square().sum().backward();
      reference->forward(batch).square().sum().backward();
      expect_same_gradients(*net, *reference);
      EXPECT_EQ(net->sometimes->weight.grad().defined(), used > 0);
      EXPECT_FALSE(net->never->weight.grad().defined());
    }
  }
}

TEST(DataParallelGradients, HooksOnParametersRunOnceWithTheWholeGradient) {
  for (const DataParallelOptions& options : kOptions) {
    Mlp net, reference;
    copy_state(*reference, *net);
    DataParallel model(net, options);
    int calls = 0;
    net->hidden->weight.register_hook([&](const Tensor& gradient) {
      ++calls;
      return gradient * 2;
    });
    for (int step = 1; step <= 3; ++step) {
      reset_gradients(*net);
      reset_gradients(*reference);
      model(values({6, 6})).sum().backward();
      reference->forward(values({6, 6})).sum().backward();
      EXPECT_EQ(calls, step);
      expect_close(net->hidden->weight.grad(), reference->hidden->weight.grad() * 2, "hooked");
      expect_close(net->last->weight.grad(), reference->last->weight.grad(), "other");
    }
  }
}

struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl() { weight = register_parameter("weight", values({3})); }
  Tensor forward(const Tensor& x, const Tensor& y, const Tensor& scale) {
    return (x * weight + torch::tanh(y)) * scale;
  }
  Tensor weight;
};
TORCH_MODULE(TwoInputs);

TEST(DataParallelGradients, ReachTheInputs) {
  for (const DataParallelOptions& options : kOptions) {
    TwoInputs net;
    DataParallel model(net, options);
    const auto gradients = [&](auto&& forward) {
      const Tensor x = values({7, 3}, 1).requires_grad_();
      const Tensor y = values({7, 3}, 2).requires_grad_();
      const Tensor scale = torch::full({}, 3.).requires_grad_();  // whole to each replica
      const Tensor before = x.sin();  // what comes before the model gets its gradient too
      forward(before, y, scale).square().sum().backward();
      return std::vector<Tensor>{x.grad(), y.grad(), scale.grad()};
    };
    const auto expected = gradients([&](const auto&... inputs) { return net->forward(inputs...); });
    const auto actual = gradients([&](const auto&... inputs) { return model(inputs...); });
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_close(actual[i], expected[i], "input " + std::to_string(i));
    }
  }
}

TEST(DataParallelGradients, OfAnInputThatSomeReplicasDoNotUseAreZeroThere) {
  struct Selective : torch::nn::Module {
    Tensor forward(const Tensor& x, const Tensor& y) {
      return y.sum().item<float>() > 0 ? x * y : y + 0 * y;
    }
  };
  auto net = std::make_shared<Selective>();
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  const Tensor x = torch::ones({4}, torch::requires_grad());
  const Tensor y = torch::tensor({1., 1., 0., 0.}).requires_grad_();
  model(x, y).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::tensor({1., 1., 0., 0.})));
}

TEST(DataParallelGradients, AreComputedForWhatIsAskedFor) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  const Tensor x = values({6, 6}).requires_grad_();
  const auto only_x = torch::autograd::grad({model(x).sum()}, {x});
  EXPECT_FALSE(net->hidden->weight.grad().defined());
  const auto expected = torch::autograd::grad({net->forward(x).sum()}, {x, net->last->weight});
  expect_close(only_x[0], expected[0], "x");
  model(x).sum().backward({}, {}, false, {net->last->weight});
  expect_close(net->last->weight.grad(), expected[1], "last");
  EXPECT_FALSE(net->hidden->weight.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(DataParallelGradients, OfSeveralForwardsBeforeOneBackward) {
  for (const DataParallelOptions& options : kOptions) {
    Mlp net, reference;
    copy_state(*reference, *net);
    DataParallel model(net, options);
    const auto loss = [](auto& of) {
      const Tensor first = of.forward(values({5, 6}));
      const Tensor second = of.forward(values({8, 6}, 1));
      // And once more in the same graph, behind itself.
      const Tensor twice = of.forward(torch::cat({second, second}, 1));
      return first.square().sum() + second.square().sum() + twice.square().sum();
    };
    loss(*model).backward();
    loss(*reference).backward();
    expect_same_gradients(*net, *reference);
  }
}

TEST(DataParallelGradients, OfTwoBackwardsThroughARetainedGraph) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  const Tensor loss = model(values({6, 6})).square().mean();
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = net->hidden->weight.grad().clone();
  loss.backward();
  expect_close(net->hidden->weight.grad(), once * 2, "twice");
}

TEST(DataParallelGradients, OfSparseEmbeddings) {
  for (const DataParallelOptions& options : kOptions) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(10, 3).sparse(true));
    DataParallel model(net, options);
    model(torch::tensor({1, 2, 2, 7, 1, 1})).sum().backward();
    ASSERT_TRUE(net->weight.grad().is_sparse());
    const Tensor counts = torch::tensor({0., 3., 2., 0., 0., 0., 0., 1., 0., 0.});
    expect_close(net->weight.grad().to_dense(), counts.unsqueeze(1).expand({10, 3}), "counts");
  }
}

TEST(DataParallelGradients, AreReducedByDdpAround) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::manual_seed(0);
    Sometimes net, reference;
    DataParallel replicated(net, {.replicas = 2, .trust_constructors = true});
    DistributedDataParallel model(replicated, group);
    copy_state(*reference, *net);
    const Tensor batch = values({12, 2}) * 2;
    for (int step = 0; step < 3; ++step) {
      reset_gradients(*net);
      reset_gradients(*reference);
      model(part(batch, group->rank(), 2)).square().mean().backward();
      reference->forward(batch).square().mean().backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

// As autograd does without replicas.
TEST(DataParallelGradients, HooksOnUnusedParametersAreNotCalled) {
  struct Half : torch::nn::Module {
    Half() {
      used = register_module("used", torch::nn::Linear(6, 2));
      unused = register_module("unused", torch::nn::Linear(6, 2));
    }
    Tensor forward(const Tensor& x) { return used(x); }
    torch::nn::Linear used{nullptr}, unused{nullptr};
  };
  const auto net = std::make_shared<Half>();
  int calls = 0;
  for (const Tensor& parameter : net->parameters()) {
    parameter.register_hook([&](const Tensor& gradient) {
      ++calls;
      return gradient * 2;
    });
  }
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  model(values({4, 6})).sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(net->used->weight.grad().defined());
  EXPECT_FALSE(net->unused->weight.grad().defined());
}

}  // namespace
}  // namespace lockstep::testing
