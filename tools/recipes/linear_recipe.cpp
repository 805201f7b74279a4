// SPDX-License-Identifier: BSD-3-Clause
// Linear regression: the smallest training with a known answer.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/data/linear_dataset.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

Recipe linear_recipe() {
  return {
      .name = "linear",
      .summary = "y = 2x + 3 from 10,000 noisy points, SGD",
      .epochs = 10,
      .batch_size = 32,
      .learning_rate = 0.01,
      .reads_folder = false,
      .is_line = true,
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
          [](std::vector<at::Tensor> parameters, double learning_rate) {
            return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                       torch::optim::SGDOptions(learning_rate));
          },
      .loss =
          [](const at::Tensor& output, const at::Tensor& target) {
            return torch::nn::functional::mse_loss(output, target);
          },
  };
}

}  // namespace lockstep
