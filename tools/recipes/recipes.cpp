// SPDX-License-Identifier: BSD-3-Clause
// The recipes, and their list.
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "lockstep/core/error.h"
#include "lockstep/data/linear_dataset.h"
#include "lockstep/optim/optimizers.h"
#include "tools/nets/resnet.h"
#include "tools/nets/transformer.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/recipe_data.h"

namespace lockstep {

// Linear regression: the smallest training with a known answer.
Recipe linear_recipe() {
  return {
      .name = "linear",
      .summary = "y = 2x + 3 from 10,000 noisy points, SGD",
      .epochs = 10,
      .batch_size = 32,
      .learning_rate = 0.01,
      .data = RecipeData::generated,
      .is_line = true,
      // Two parameters: every rank updates them in less time than the ranks take to exchange them.
      .shards_optimizer = false,
      .load =
          [](const std::filesystem::path&, std::uint64_t seed, ProcessGroup&) {
            const LinearDataset set({.seed = seed});
            return TrainingData{.inputs = set.inputs(),
                                .targets = set.targets(),
                                .test_inputs = {},
                                .test_targets = {}};
          },
      .make_net = [] { return torch::nn::Sequential{torch::nn::Linear(1, 1)}; },
      .make_optimizer =
          [](const Trained& trained, double learning_rate) {
            return make_optimizer<optim::SGD>(trained, torch::optim::SGDOptions(learning_rate));
          },
      .loss =
          [](const at::Tensor& output, const at::Tensor& target) {
            return torch::nn::functional::mse_loss(output, target);
          },
  };
}

// A multilayer perceptron for MNIST-like images: 203,530 parameters, most of them in one layer.
Recipe mlp_recipe() {
  return {
      .name = "mlp",
      .summary = "784-256-10 with ReLU for images of MNIST's format, Adam",
      .epochs = 5,
      .batch_size = 64,
      .learning_rate = 1e-3,
      .data = RecipeData::images,
      // Sharding saves half of an update of 0.06 ms, and waits for the slower rank once more.
      .shards_optimizer = false,
      .load = [](const std::filesystem::path& folder, std::uint64_t,
                 ProcessGroup& group) { return load_images(folder, group); },
      .make_net =
          [] {
            return torch::nn::Sequential{
                torch::nn::Flatten(),
                torch::nn::Linear(784, 256),
                torch::nn::ReLU(),
                torch::nn::Linear(256, 10),
            };
          },
      .make_optimizer =
          [](const Trained& trained, double learning_rate) {
            return make_optimizer<optim::Adam>(trained, torch::optim::AdamOptions(learning_rate));
          },
      .loss =
          [](const at::Tensor& output, const at::Tensor& target) {
            return torch::nn::functional::cross_entropy(output, target);
          },
  };
}

// A small convolutional net for MNIST-like images: 108,618 parameters.
Recipe cnn_recipe() {
  return {
      .name = "cnn",
      .summary = "two convolutions and two linear layers for images of MNIST's format, Adam",
      .epochs = 2,
      .batch_size = 64,
      .learning_rate = 1e-3,
      .data = RecipeData::images,
      .load = [](const std::filesystem::path& folder, std::uint64_t,
                 ProcessGroup& group) { return load_images(folder, group); },
      .make_net =
          [] {
            namespace nn = torch::nn;
            // 28 -> 26 -> 13 -> 11 -> 5 pixels per side
            return nn::Sequential{
                nn::Conv2d(nn::Conv2dOptions(1, 16, 3)),
                nn::ReLU(),
                nn::MaxPool2d(2),
                nn::Conv2d(nn::Conv2dOptions(16, 32, 3)),
                nn::ReLU(),
                nn::MaxPool2d(2),
                nn::Flatten(),
                nn::Linear(32 * 5 * 5, 128),
                nn::ReLU(),
                nn::Linear(128, 10),
            };
          },
      .make_optimizer =
          [](const Trained& trained, double learning_rate) {
            return make_optimizer<optim::Adam>(trained, torch::optim::AdamOptions(learning_rate));
          },
      .loss =
          [](const at::Tensor& output, const at::Tensor& target) {
            return torch::nn::functional::cross_entropy(output, target);
          },
  };
}

// ResNet-18: 11,175,370 parameters for MNIST-like images.
Recipe resnet18_recipe() {
  return {
      .name = "resnet18",
      .summary = "ResNet-18 for images of MNIST's format, or in files, SGD with momentum",
      .epochs = 2,
      .batch_size = 64,
      .learning_rate = 0.02,
      .data = RecipeData::any_images,
      .has_blocks = true,
      .load = [](const std::filesystem::path& folder, std::uint64_t,
                 ProcessGroup& group) { return load_images(folder, group); },
      .make_net = [] { return nets::resnet18(/*classes=*/10, /*channels=*/1); },
      .make_color_net = [](std::int64_t classes) { return nets::resnet18(classes); },
      .make_optimizer =
          [](const Trained& trained, double learning_rate) {
            return make_optimizer<optim::SGD>(
                trained, torch::optim::SGDOptions(learning_rate).momentum(0.9).weight_decay(5e-4));
          },
      .loss =
          [](const at::Tensor& output, const at::Tensor& target) {
            return torch::nn::functional::cross_entropy(output, target);
          },
  };
}

// A small GPT that predicts the next byte of a text: 867,328 parameters.
Recipe char_transformer_recipe() {
  return {
      .name = "char-transformer",
      .summary = "a GPT with 4 layers of width 128 that predicts the next byte of a text, AdamW",
      .epochs = 6,
      .batch_size = 16,
      .learning_rate = 2e-3,
      .data = RecipeData::text,
      .has_blocks = true,
      .load = [](const std::filesystem::path& path, std::uint64_t,
                 ProcessGroup& group) { return load_text(path, group); },
      .make_net =
          [] {
            return nets::byte_transformer({.layers = 4, .width = 128, .heads = 4, .hidden = 512},
                                          kTextWindow);
          },
      .make_optimizer =
          [](const Trained& trained, double learning_rate) {
            return make_optimizer<optim::AdamW>(trained, torch::optim::AdamWOptions(learning_rate));
          },
      // All windows have the same length, so the mean over the bytes is that over the samples.
      .loss =
          [](const at::Tensor& output, const at::Tensor& target) {
            return torch::nn::functional::cross_entropy(output.flatten(0, 1),
                                                        target.flatten().to(at::kLong));
          },
  };
}

std::vector<Recipe> all_recipes() {
  return {linear_recipe(), mlp_recipe(), cnn_recipe(), resnet18_recipe(),
          char_transformer_recipe()};
}

Recipe find_recipe(const std::string& name) {
  std::string names;
  for (auto& recipe : all_recipes()) {
    if (recipe.name == name) return recipe;
    names += (names.empty() ? "" : ", ") + recipe.name;
  }
  throw UsageError(fmt::format("there is no recipe \"{}\"; choose one of {}", name, names));
}

}  // namespace lockstep
