// SPDX-License-Identifier: BSD-3-Clause
// ResNet-18 for MNIST-like images: 11,175,370 parameters.
#include <torch/nn/functional/loss.h>

#include "lockstep/optim/optimizers.h"
#include "tools/nets/resnet.h"
#include "tools/recipes/image_data.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

Recipe resnet18_recipe() {
  return {
      .name = "resnet18",
      .summary = "ResNet-18 for images of MNIST's format, SGD with momentum",
      .epochs = 2,
      .batch_size = 64,
      .learning_rate = 0.02,
      .data = RecipeData::images,
      .load = [](const std::filesystem::path& folder, std::uint64_t,
                 ProcessGroup& group) { return load_images(folder, group); },
      .make_net = [] { return nets::resnet18(/*classes=*/10, /*channels=*/1); },
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

}  // namespace lockstep
