// SPDX-License-Identifier: BSD-3-Clause
// Attention and feed-forward layers, and the mean over the length.
#include "tools/bench/transformer.h"

#include <cmath>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace lockstep::bench {
namespace {

torch::nn::LayerNorm normalization(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

// Self-attention: each position attends to all positions.
struct AttentionImpl : torch::nn::Cloneable<AttentionImpl> {
  AttentionImpl(std::int64_t width_, std::int64_t heads_) : width(width_), heads(heads_) {
    reset();
  }

  void reset() override {
    projections = register_module("projections", torch::nn::Linear(width, 3 * width));
    output = register_module("output", torch::nn::Linear(width, width));
  }

  at::Tensor forward(const at::Tensor& input) {
    const std::int64_t batch = input.size(0);
    const std::int64_t length = input.size(1);
    // Queries, keys and values, each [batch, heads, length, width of a head].
    const auto parts = projections->forward(input)
                           .view({batch, length, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    const at::Tensor weights =
        torch::softmax(torch::matmul(parts[0], parts[1].transpose(-2, -1)) * scale, -1);
    const at::Tensor seen = torch::matmul(weights, parts[2]).transpose(1, 2);
    return output->forward(seen.reshape({batch, length, width}));
  }

  std::int64_t width;
  std::int64_t heads;
  torch::nn::Linear projections{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(Attention);

struct LayerImpl : torch::nn::Cloneable<LayerImpl> {
  explicit LayerImpl(const TransformerShape& shape_) : shape(shape_) { reset(); }

  void reset() override {
    attention = register_module(
        "attention",
        torch::nn::Sequential(normalization(shape.width), Attention(shape.width, shape.heads)));
    hidden = register_module(
        "hidden", torch::nn::Sequential(
                      normalization(shape.width), torch::nn::Linear(shape.width, shape.hidden),
                      torch::nn::GELU(), torch::nn::Linear(shape.hidden, shape.width)));
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor seen = input + attention->forward(input);
    return seen + hidden->forward(seen);
  }

  TransformerShape shape;
  torch::nn::Sequential attention{nullptr};
  torch::nn::Sequential hidden{nullptr};
};
TORCH_MODULE(Layer);

struct MeanOfLengthImpl : torch::nn::Cloneable<MeanOfLengthImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& input) { return input.mean(1); }
};
TORCH_MODULE(MeanOfLength);

}  // namespace

torch::nn::Sequential transformer(const TransformerShape& shape, std::int64_t classes) {
  torch::nn::Sequential net;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) net->push_back(Layer(shape));
  net->push_back(normalization(shape.width));
  net->push_back(MeanOfLength());
  net->push_back(torch::nn::Linear(shape.width, classes));
  return net;
}

}  // namespace lockstep::bench
