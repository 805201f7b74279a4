// SPDX-License-Identifier: BSD-3-Clause
// The encoder of Vaswani et al. 2017, "Attention Is All You Need", with the normalisation before
// each part, as has become usual.
#pragma once

#include <cstdint>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

struct TransformerShape {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  // Of the hidden layer between the two linear ones.
  std::int64_t hidden;
};

// Takes embeddings [N, length, width] and gives [N, classes], of the mean over the length.
torch::nn::Sequential transformer(const TransformerShape& shape, std::int64_t classes);

}  // namespace lockstep::bench
