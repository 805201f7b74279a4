// SPDX-License-Identifier: BSD-3-Clause
// Replicas stay like their module: values, buffers, modes, whatever happens to it between forwards.
#include <cstdio>
#include <sstream>

#include "tests/parallel/models.h"
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::testing {
namespace {

using at::Tensor;

const std::vector<DataParallelOptions> kReplicas = {
    {.replicas = 2, .trust_constructors = true},
    {.replicas = 2, .trust_constructors = true, .share_parameters = false}};

struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl() {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x) { return dropout(norm(linear(x))); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Normalized);

// What the model computes is what its module would.
template <class Model>
void expect_state_like_its_module(Model& model, const Tensor& batch) {
  const torch::NoGradGuard no_grad;
  expect_close(model(batch), model->module()->forward(batch), "output");
}

struct BufferedNet : torch::nn::Module {
  explicit BufferedNet(const Tensor& buffer) { mask = register_buffer("mask", buffer); }
  Tensor forward(const Tensor& x) {
    const Tensor dense = mask.layout() == at::kStrided ? mask : mask.to_dense();
    return linear(x).matmul(at::real(dense));
  }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(3, 4))};
  Tensor mask;
};

TEST(DataParallelState, ReplicasHaveSparseExpandedAndComplexBuffers) {
  for (const bool share : {true, false}) {
    for (const Tensor& mask :
         {torch::eye(4).to_sparse(), torch::eye(4).to_sparse_csr(), values({1, 4}).expand({4, 4}),
          torch::complex(values({4, 4}), values({4, 4}, 1)).conj()}) {
      const auto net = std::make_shared<BufferedNet>(mask);
      const auto copy = [&] { return std::make_shared<BufferedNet>(mask.clone()); };
      DataParallel model(net, {.replicas = 2, .make_replica = copy, .share_parameters = share});
      expect_state_like_its_module(model, values({6, 3}));
      net->mask.set_data(mask * 2);
      expect_state_like_its_module(model, values({6, 3}, 1));
      model(values({6, 3})).sum().backward();
    }
  }
}

TEST(DataParallelState, BatchNormKeepsWhatReplicaZeroSaw) {
  for (const DataParallelOptions& options : kReplicas) {
    Normalized net, reference;
    copy_state(*reference, *net);
    DataParallel model(net, options);
    for (int step = 0; step < 3; ++step) {
      const Tensor batch = values({8, 3}, step);
      model(batch).sum().backward();
      reference->forward(batch.slice(0, 0, 4));
    }
    EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 3);
    expect_close(net->norm->running_mean, reference->norm->running_mean, "mean");
    expect_close(net->norm->running_var, reference->norm->running_var, "variance");
    // In eval every replica has these.
    net->eval();
    expect_state_like_its_module(model, values({8, 3}));
    EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 3);
  }
}

TEST(DataParallelState, BatchNormInEvalTakesSeveralForwardsBeforeOneBackward) {
  for (const DataParallelOptions& options : kReplicas) {
    Normalized net, reference;
    copy_state(*reference, *net);
    net->eval();
    reference->eval();
    DataParallel model(net, options);
    const auto loss = [](auto& of) {
      return (of.forward(values({8, 3})) + of.forward(values({8, 3}, 1))).square().sum();
    };
    loss(*model).backward();
    loss(*reference).backward();
    expect_same_gradients(*net, *reference);
  }
}

TEST(DataParallelState, ModesOfSubmodulesAreFollowed) {
  Normalized net;
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  const Tensor batch = values({64, 3});
  const auto dropped = [&] { return model(batch).eq(0).sum(0).ne(0).all().template item<bool>(); };
  EXPECT_TRUE(dropped());
  net->dropout->eval();  // alone
  EXPECT_FALSE(dropped());
  net->train();
  net->norm->eval();
  EXPECT_TRUE(dropped());
  net->eval();
  expect_state_like_its_module(model, batch);
  net->train();
  EXPECT_TRUE(dropped());
  EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 3);  // once a forward in train
}

TEST(DataParallelState, ReplicasDropIndependently) {
  torch::nn::Sequential net{torch::nn::Dropout(0.5)};
  DataParallel model(net, {.replicas = 2});
  const Tensor output = model(torch::ones({2, 1000}));
  EXPECT_FALSE(torch::equal(output[0], output[1]));
  for (int replica = 0; replica < 2; ++replica) {
    EXPECT_NEAR(output[replica].mean().item<double>(), 1, 0.25);
  }
}

TEST(DataParallelState, ChangesOfTheModuleAreFollowed) {
  for (const DataParallelOptions& options : kReplicas) {
    Normalized net;
    net->eval();
    DataParallel model(net, options);
    const Tensor batch = values({6, 3});
    expect_state_like_its_module(model, batch);
    {
      const torch::NoGradGuard no_grad;
      net->linear->weight.mul_(2);  // in place
      net->norm->running_mean.fill_(3);
    }
    expect_state_like_its_module(model, batch);
    net->linear->weight.set_data(values({4, 3}));  // other memory
    expect_state_like_its_module(model, batch);
    std::ostringstream saved;
    torch::save(model->module(), saved);
    Normalized other;
    torch::save(other, saved = {});
    std::istringstream stream(saved.str());
    torch::load(net, stream);
    expect_state_like_its_module(model, batch);
    expect_close(net->linear->weight, other->linear->weight, "loaded");
    net->to(at::kDouble);  // another type
    EXPECT_EQ(model(batch.to(at::kDouble)).scalar_type(), at::kDouble);
    expect_state_like_its_module(model, batch.to(at::kDouble));
    model->to(at::kFloat);  // through the wrapper
    expect_state_like_its_module(model, batch);
    net->linear->weight.set_data(values({3, 4}).t());  // another order in memory
    expect_state_like_its_module(model, batch);
    net->norm = net->replace_module("norm", torch::nn::BatchNorm1d(4));  // a new submodule
    net->eval();
    expect_state_like_its_module(model, batch);
    net->linear->bias = net->register_parameter("another", values({4}));
  }
}

TEST(DataParallelState, ParametersInAnyOrderOfMemory) {
  for (const DataParallelOptions& options : kReplicas) {
    ConvNet net;
    for (Tensor& parameter : net->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
    DataParallel model(net, options);
    expect_state_like_its_module(model, values({4, 2, 8, 8}));
    ConvNet reference;
    copy_state(*reference, *net);
    model(values({4, 2, 8, 8})).square().sum().backward();
    reference->forward(values({4, 2, 8, 8})).square().sum().backward();
    expect_same_gradients(*net, *reference);
  }
}

TEST(DataParallelState, ReplicasUseTheModulesMemory) {
  struct ShowsMemoryImpl : torch::nn::Module {
    ShowsMemoryImpl() { weight = register_parameter("weight", torch::ones({1000})); }
    Tensor forward(const Tensor& x) {
      return x + static_cast<double>(reinterpret_cast<std::uintptr_t>(weight.data_ptr()));
    }
    Tensor weight;
  };
  const auto memory = [](const DataParallelOptions& options) {
    ShowsMemoryImpl net;
    DataParallel model(net, options);
    const torch::NoGradGuard no_grad;
    return model(torch::zeros({2}, at::kDouble)) -
           static_cast<double>(reinterpret_cast<std::uintptr_t>(net.weight.data_ptr()));
  };
  EXPECT_TRUE(memory({.replicas = 2, .trust_constructors = true}).eq(0).all().item<bool>());
  const Tensor own = memory({.replicas = 2, .trust_constructors = true, .share_parameters = false});
  EXPECT_EQ(own[0].item<double>(), 0);
  EXPECT_NE(own[1].item<double>(), 0);
}

TEST(DataParallelState, RandomNumbersAreAsWithoutReplicas) {
  torch::manual_seed(5);
  Mlp net;
  const Tensor expected = torch::rand({4});
  torch::manual_seed(5);
  Mlp wrapped;
  DataParallel model(wrapped, {.replicas = 3});
  model(values({6, 6}));
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(DataParallelState, GradModesReachTheReplicas) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(model(values({6, 6})).requires_grad());
  }
  {
    const c10::InferenceMode inference;  // also as the first forward of new replicas
    DataParallel fresh(net, {.replicas = 2, .share_parameters = false});
    EXPECT_TRUE(fresh(values({6, 6})).is_inference());
    const c10::InferenceMode over(false);
    fresh(values({6, 6})).sum().backward();
  }
  EXPECT_TRUE(model(values({6, 6})).requires_grad());
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(DataParallelState, AutocastReachesTheReplicas) {
  struct Multiplies : torch::nn::Module {
    Multiplies() { weight = register_parameter("weight", values({3, 3})); }
    Tensor forward(const Tensor& x) { return torch::mm(x, weight); }
    Tensor weight;
  };
  Multiplies net;
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, false);
  for (int step = 0; step < 2; ++step) {
    // The second step's weights are not those that the first one converted.
    net.weight.mutable_grad().reset();
    const Tensor output = model(values({4, 3}));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    expect_close(output.to(at::kFloat), net.forward(values({4, 3})).to(at::kFloat), "output");
    at::autocast::clear_cache();  // as the end of an autocast block does
    output.sum().backward();
    EXPECT_EQ(net.weight.grad().scalar_type(), at::kFloat);
    const torch::NoGradGuard no_grad;
    net.weight.mul_(2);
  }
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, true);
  EXPECT_EQ(model(values({4, 3})).scalar_type(), at::kFloat);
}

TEST(DataParallelState, SavesAndLoadsAsTheModule) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  model(values({6, 6})).sum().backward();
  std::ostringstream saved;
  torch::save(model->module(), saved);
  Mlp loaded;
  std::istringstream stream(saved.str());
  torch::load(loaded, stream);
  expect_close(loaded->forward(values({2, 6})), net->forward(values({2, 6})), "loaded");
}

}  // namespace
}  // namespace lockstep::testing
