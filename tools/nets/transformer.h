// SPDX-License-Identifier: BSD-3-Clause
// The transformers of Vaswani et al. 2017, "Attention Is All You Need", with normalization before
// each sublayer, as is now usual.
#pragma once

#include <cstdint>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::nets {

struct TransformerShape {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  // Width of the hidden layer between the two linear ones.
  std::int64_t hidden;
};

// A layer has the parameters of Python's torch.nn.TransformerEncoderLayer(width, heads, hidden,
// dropout=0, activation="gelu", batch_first=True, norm_first=True), their names and, for the same
// seed, their first values.

// Maps embeddings [N, length, width] to [N, classes], from the mean over the length. Each position
// attends to all.
torch::nn::Sequential transformer(const TransformerShape& shape, std::int64_t classes);

// A GPT: maps bytes [N, length], of any integer type, to the scores [N, length, 256] of the byte
// that follows each. No position attends to a later one. The length is at most `context`.
torch::nn::Sequential byte_transformer(const TransformerShape& shape, std::int64_t context);

}  // namespace lockstep::nets
