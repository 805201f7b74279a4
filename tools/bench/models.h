// SPDX-License-Identifier: BSD-3-Clause
// Models of different sizes, with an optimizer and a batch, for measuring training steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include "tools/recipes/recipe.h"

namespace lockstep::bench {

// torch: libtorch's own optimizers. fused: the optimizers of lockstep::optim. sharded: the same,
// sharded over the ranks of a DistributedDataParallel. divided: sharded, with whole_gradients =
// false. one_copy: sharded, with one_copy_per_host.
enum class OptimizerKind : std::uint8_t { torch, fused, sharded, divided, one_copy };

constexpr bool is_sharded(OptimizerKind kind) {
  return kind != OptimizerKind::torch && kind != OptimizerKind::fused;
}

std::string_view name(OptimizerKind kind);

struct Model {
  std::string name;
  // A one-line description.
  std::string summary;
  // Samples per rank, by default.
  std::int64_t batch_size;

  // Weights and batches are drawn from the default generator.
  std::function<torch::nn::Sequential()> make_net;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Trained&, OptimizerKind)>
      make_optimizer;
  std::function<at::Tensor(std::int64_t batch_size)> make_input;
  std::function<at::Tensor(std::int64_t batch_size)> make_target;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
};

// linear: one weight, one bias, SGD, 32 samples. mlp: 784-256-10, Adam, 64. cnn: the net of the
// recipe, 64. mlp25m: 6 layers of 2048 x 2048, SGD, 64; mlp25m-adam: the same with Adam. resnet18:
// He et al. 2015 on 64 images of 32 x 32, SGD with momentum. For GPUs: resnet50 on 32 images of 224
// x 224, and transformer, an encoder of 6 layers on 32 sequences.
std::vector<Model> all_models();

// UsageError, listing the models, if there is none of this name.
Model find_model(const std::string& name);

}  // namespace lockstep::bench
