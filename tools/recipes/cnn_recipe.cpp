// SPDX-License-Identifier: BSD-3-Clause
// A small convolutional net for MNIST-like images: 108,618 parameters.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "lockstep/optim/optimizers.h"
#include "tools/recipes/image_data.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

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

}  // namespace lockstep
