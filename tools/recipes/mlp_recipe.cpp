// SPDX-License-Identifier: BSD-3-Clause
// A multilayer perceptron for MNIST-like images: 203,530 parameters, most of them in one layer.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/optim/optimizers.h"
#include "tools/recipes/image_data.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

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

}  // namespace lockstep
