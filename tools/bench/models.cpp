// SPDX-License-Identifier: BSD-3-Clause
// The models' nets, optimizers, batches and losses.
#include "tools/bench/models.h"

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tools/nets/resnet.h"
#include "tools/nets/transformer.h"
#include "tools/recipes/recipe.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kClasses = 10;

template <class Torch, class Fused, class Options>
std::unique_ptr<torch::optim::Optimizer> make(OptimizerKind kind, const Trained& trained,
                                              const Options& options) {
  if (kind == OptimizerKind::torch) return std::make_unique<Torch>(trained.parameters, options);
  return make_optimizer<Fused>(is_sharded(kind) ? trained : Trained{trained.parameters}, options);
}

auto sgd(double learning_rate, double momentum = 0) {
  return [=](const Trained& trained, OptimizerKind kind) {
    return make<torch::optim::SGD, optim::SGD>(
        kind, trained, torch::optim::SGDOptions(learning_rate).momentum(momentum));
  };
}

std::unique_ptr<torch::optim::Optimizer> adam(const Trained& trained, OptimizerKind kind) {
  return make<torch::optim::Adam, optim::Adam>(kind, trained, torch::optim::AdamOptions(1e-3));
}

// A batch of normally distributed samples of these sizes.
std::function<at::Tensor(std::int64_t)> noise(std::vector<std::int64_t> sizes) {
  return [sizes = std::move(sizes)](std::int64_t batch_size) {
    std::vector<std::int64_t> all{batch_size};
    all.insert(all.end(), sizes.begin(), sizes.end());
    return torch::randn(all);
  };
}

at::Tensor labels(std::int64_t batch_size) {
  return torch::randint(kClasses, {batch_size}, at::kLong);
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

Model linear() {
  return {.name = "linear",
          .summary = "one weight and one bias, SGD, 32 samples",
          .batch_size = 32,
          .make_net = [] { return torch::nn::Sequential(torch::nn::Linear(1, 1)); },
          .make_optimizer = sgd(0.01),
          .make_input = noise({1}),
          .make_target = noise({1}),
          .loss = squared_error};
}

Model mlp() {
  return {.name = "mlp",
          .summary = "784-256-10 with ReLU, Adam, 64 samples",
          .batch_size = 64,
          .make_net =
              [] {
                return torch::nn::Sequential(torch::nn::Linear(784, 256), torch::nn::ReLU(),
                                             torch::nn::Linear(256, kClasses));
              },
          .make_optimizer = adam,
          .make_input = noise({784}),
          .make_target = labels,
          .loss = cross_entropy};
}

Model cnn() {
  return {.name = "cnn",
          .summary = "the net of lockstep train cnn, Adam, 64 images of 28 x 28",
          .batch_size = 64,
          .make_net = cnn_recipe().make_net,
          .make_optimizer = adam,
          .make_input = noise({1, 28, 28}),
          .make_target = labels,
          .loss = cross_entropy};
}

Model mlp25m() {
  static constexpr std::int64_t kWidth = 2048;
  return {.name = "mlp25m",
          .summary = "6 layers of 2048 x 2048 with ReLU, 25 million parameters, SGD, 64 samples",
          .batch_size = 64,
          .make_net =
              [] {
                torch::nn::Sequential net(torch::nn::Linear(kWidth, kWidth));
                for (int layer = 1; layer < 6; ++layer) {
                  net->push_back(torch::nn::ReLU());
                  net->push_back(torch::nn::Linear(kWidth, kWidth));
                }
                return net;
              },
          .make_optimizer = sgd(0.01),
          .make_input = noise({kWidth}),
          .make_target = noise({kWidth}),
          .loss = squared_error};
}

Model mlp25m_adam() {
  Model model = mlp25m();
  model.name = "mlp25m-adam";
  model.summary = "the same with Adam";
  model.make_optimizer = adam;
  return model;
}

// Each rank normalizes over its own batch, as with torch.nn.BatchNorm2d.
torch::nn::Sequential with_norms_of_one_rank(torch::nn::Sequential net) {
  convert_sync_batchnorm(*net, make_self_group());
  return net;
}

Model resnet18_model() {
  return {.name = "resnet18",
          .summary = "ResNet-18, 11 million parameters, SGD with momentum, 64 images of 32 x 32",
          .batch_size = 64,
          .make_net = [] { return with_norms_of_one_rank(nets::resnet18(kClasses)); },
          .make_optimizer = sgd(0.01, 0.9),
          .make_input = noise({3, 32, 32}),
          .make_target = labels,
          .loss = cross_entropy};
}

Model resnet50_model() {
  return {.name = "resnet50",
          .summary = "ResNet-50, 24 million parameters, SGD with momentum, 32 images of 224 x 224",
          .batch_size = 32,
          .make_net = [] { return with_norms_of_one_rank(nets::resnet50(kClasses)); },
          .make_optimizer = sgd(0.01, 0.9),
          .make_input = noise({3, 224, 224}),
          .make_target = labels,
          .loss = cross_entropy};
}

Model transformer_model() {
  static constexpr nets::TransformerShape kShape{
      .layers = 6, .width = 512, .heads = 8, .hidden = 2048};
  return {.name = "transformer",
          .summary =
              "an encoder with 6 layers of width 512, 19 million parameters, Adam, 32 sequences "
              "of 128",
          .batch_size = 32,
          .make_net = [] { return nets::transformer(kShape, kClasses); },
          .make_optimizer = adam,
          .make_input = noise({128, kShape.width}),
          .make_target = labels,
          .loss = cross_entropy};
}

}  // namespace

std::string_view name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::torch:
      return "torch";
    case OptimizerKind::fused:
      return "fused";
    case OptimizerKind::sharded:
      return "sharded";
    case OptimizerKind::divided:
      return "divided";
    case OptimizerKind::one_copy:
      return "one-copy";
  }
  return "unknown";
}

std::vector<Model> all_models() {
  return {
      linear(),           mlp(), cnn(), mlp25m(), mlp25m_adam(), resnet18_model(), resnet50_model(),
      transformer_model()};
}

Model find_model(const std::string& name) {
  std::string names;
  for (Model& model : all_models()) {
    if (model.name == name) return model;
    names += (names.empty() ? "" : ", ") + model.name;
  }
  throw UsageError(fmt::format("there is no model {}; choose one of {}", name, names));
}

}  // namespace lockstep::bench
