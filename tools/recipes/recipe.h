// SPDX-License-Identifier: BSD-3-Clause
// The ingredients of a training run besides its options: data, net, optimizer, loss. A recipe is a
// value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Rows of samples and targets, on the CPU. Without a test set there is no accuracy.
struct TrainingData {
  at::Tensor inputs;
  at::Tensor targets;
  at::Tensor test_inputs;
  at::Tensor test_targets;
  // The statistics with which the inputs were standardized, for checkpoints.
  std::vector<NamedTensor> statistics = {};
};

// The data of a recipe: generated from the seed; a folder of images in MNIST's format; or a text
// file, or a folder of them.
enum class RecipeData : std::uint8_t { generated, images, text };

// The parameters that an optimizer updates.
struct Trained {
  std::vector<at::Tensor> parameters;
  DistributedDataParallelBase* wrapper = nullptr;  // null unless distributed
};

// Makes an optimizer of lockstep::optim, sharded over the ranks of the wrapper if there is one.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Trained& trained,
                                                        const Options& options) {
  if (trained.wrapper != nullptr) return std::make_unique<Optimizer>(*trained.wrapper, options);
  return std::make_unique<Optimizer>(trained.parameters, options);
}

struct Recipe {
  std::string name;
  // One line for --help.
  std::string summary;
  std::int64_t epochs;
  // Samples per rank.
  std::int64_t batch_size;
  double learning_rate;
  RecipeData data;
  // Whether the net is one weight and one bias, which the result reports.
  bool is_line = false;
  // Whether each rank of ddp updates a part of the parameters; make_optimizer must then shard.
  bool shards_optimizer = true;

  // Collective. The path is empty for generated data.
  std::function<TrainingData(const std::filesystem::path& path, std::uint64_t seed,
                             ProcessGroup& group)>
      load;
  // Draws the weights from the default generator, as Python does after the same manual_seed. Use
  // Sequential{...} with braces, which build the layers in order. With parentheses, the order is
  // the compiler's choice, and g++ starts with the last layer.
  std::function<torch::nn::Sequential()> make_net;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Trained&, double learning_rate)>
      make_optimizer;
  // Returns the mean over the batch, in nats if the net classifies. A classifying net maps [N, ...]
  // to scores [N, ..., classes] for targets [N, ...].
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
};

// A line fitted to LinearDataset by SGD.
Recipe linear_recipe();
// 784-256-10 with ReLU, Adam, for MNIST-like images.
Recipe mlp_recipe();
// Two convolutions and two linear layers, Adam, for MNIST-like images.
Recipe cnn_recipe();
// ResNet-18, SGD with momentum, for MNIST-like images.
Recipe resnet18_recipe();
// A GPT of four layers, AdamW, for text.
Recipe char_transformer_recipe();

std::vector<Recipe> all_recipes();

// UsageError, listing the recipes, if there is none of this name.
Recipe find_recipe(const std::string& name);

}  // namespace lockstep
