// SPDX-License-Identifier: BSD-3-Clause
// A small GPT that predicts the next byte of a text: 867,328 parameters.
#include <torch/nn/functional/loss.h>

#include "lockstep/optim/optimizers.h"
#include "tools/nets/transformer.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/text_data.h"

namespace lockstep {

Recipe char_transformer_recipe() {
  return {
      .name = "char-transformer",
      .summary = "a GPT with 4 layers of width 128 that predicts the next byte of a text, AdamW",
      .epochs = 6,
      .batch_size = 16,
      .learning_rate = 2e-3,
      .data = RecipeData::text,
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

}  // namespace lockstep
