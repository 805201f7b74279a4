// SPDX-License-Identifier: BSD-3-Clause
// The encoder of Vaswani et al. 2017, "Attention Is All You Need", with normalization before each
// sublayer, as is now usual.
#pragma once

#include <cstdint>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

struct TransformerShape {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  // Width of the hidden layer between the two linear ones.
  std::int64_t hidden;
};

// Maps embeddings [N, length, width] to [N, classes], from the mean over the length.
torch::nn::Sequential transformer(const TransformerShape& shape, std::int64_t classes);

}  // namespace lockstep::bench
