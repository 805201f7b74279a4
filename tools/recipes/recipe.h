// SPDX-License-Identifier: BSD-3-Clause
// The ingredients of a training run besides its options: data, net, optimizer, loss. A recipe is a
// value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch_transforms.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Images that are read from their files while the net trains.
struct ImageFiles {
  ImageFolder train;
  ImageFolder test;  // with the same classes
  // What a DataLoader applies to the batches of either.
  std::vector<BatchTransform> train_transforms;
  std::vector<BatchTransform> test_transforms;
};

// The samples of a recipe: rows of samples and targets, on the CPU, or files. Without a test set
// there is no accuracy.
struct TrainingData {
  at::Tensor inputs;
  at::Tensor targets;
  at::Tensor test_inputs;
  at::Tensor test_targets;
  // The statistics with which the inputs are standardized, for checkpoints.
  std::vector<NamedTensor> statistics = {};
  // The tensors above are undefined if there are files.
  std::optional<ImageFiles> files = {};

  // The number of training samples.
  std::int64_t size() const {
    return files ? static_cast<std::int64_t>(files->train.size().value()) : inputs.size(0);
  }
  // The number of test samples; 0 without a test set.
  std::int64_t test_size() const {
    if (files) return static_cast<std::int64_t>(files->test.size().value());
    return test_inputs.defined() ? test_inputs.size(0) : 0;
  }
};

// Where the data of a recipe come from.
enum class RecipeData : std::uint8_t {
  generated,   // from the seed
  images,      // a folder in MNIST's format
  any_images,  // such a folder, or one whose subfolders `train` and `val` are ImageFolders
  text,        // a text file, or a folder of them
};

// The parameters that an optimizer updates.
struct Trained {
  std::vector<at::Tensor> parameters;
  DistributedDataParallelBase* wrapper = nullptr;  // null unless distributed
  ProcessGroup* group = nullptr;                   // instead, if every rank has the whole gradients
};

// Makes an optimizer of lockstep::optim, sharded over the ranks of the wrapper or group if there is
// one.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Trained& trained,
                                                        const Options& options) {
  if (trained.wrapper != nullptr) return std::make_unique<Optimizer>(*trained.wrapper, options);
  if (trained.group != nullptr) {
    return std::make_unique<Optimizer>(trained.parameters, options, *trained.group);
  }
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
  // Whether the net has blocks for nets::recompute_blocks.
  bool has_blocks = false;

  // Collective. The path is empty for generated data. load_image_files() loads ImageFolders.
  std::function<TrainingData(const std::filesystem::path& path, std::uint64_t seed,
                             ProcessGroup& group)>
      load;
  // Draws the weights from the default generator, as Python does after the same manual_seed. Use
  // Sequential{...} with braces, which build the layers in order. With parentheses, the order is
  // the compiler's choice, and g++ starts with the last layer.
  std::function<torch::nn::Sequential()> make_net;
  // For RecipeData::any_images: the net for images of three channels, as ImageFolders have them.
  std::function<torch::nn::Sequential(std::int64_t classes)> make_color_net = {};
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
// ResNet-18, SGD with momentum, for MNIST-like images and for image files.
Recipe resnet18_recipe();
// A GPT of four layers, AdamW, for text.
Recipe char_transformer_recipe();

std::vector<Recipe> all_recipes();

// UsageError, listing the recipes, if there is none of this name.
Recipe find_recipe(const std::string& name);

}  // namespace lockstep
