// SPDX-License-Identifier: BSD-3-Clause
// Linear regression: the smallest training with a known answer.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/data/linear_dataset.h"
#include "lockstep/optim/optimizers.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

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

}  // namespace lockstep
