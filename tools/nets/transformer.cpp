// SPDX-License-Identifier: BSD-3-Clause
// Attention and feed-forward layers, and what comes before and after them.
#include "tools/nets/transformer.h"

#include <cmath>
#include <limits>

#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tools/nets/named_sequential.h"

namespace lockstep::nets {
namespace {

constexpr std::int64_t kBytes = 256;
// libtorch's default of 1 would drown what the first layers add.
constexpr double kEmbeddingDeviation = 0.02;

torch::nn::LayerNorm normalization(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

// Self-attention. If it is causal, a position attends to itself and to earlier ones.
struct SelfAttentionImpl : torch::nn::Cloneable<SelfAttentionImpl> {
  SelfAttentionImpl(std::int64_t width_, std::int64_t heads_, bool causal_)
      : width(width_), heads(heads_), causal(causal_) {
    reset();
  }

  void reset() override {
    in_proj_weight = register_parameter("in_proj_weight", torch::empty({3 * width, width}));
    in_proj_bias = register_parameter("in_proj_bias", torch::zeros({3 * width}));
    out_proj = register_module("out_proj", torch::nn::Linear(width, width));
    torch::nn::init::xavier_uniform_(in_proj_weight);
    torch::nn::init::zeros_(out_proj->bias);
  }

  at::Tensor forward(const at::Tensor& input) {
    const std::int64_t batch = input.size(0);
    const std::int64_t length = input.size(1);
    // Queries, keys and values, each [batch, heads, length, width of a head].
    const auto parts = torch::linear(input, in_proj_weight, in_proj_bias)
                           .view({batch, length, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) * scale;
    if (causal) scores = scores + later_positions(length, input.device(), scores.scalar_type());
    const at::Tensor seen = torch::matmul(torch::softmax(scores, -1), parts[2]).transpose(1, 2);
    return out_proj(seen.reshape({batch, length, width}));
  }

  // Minus infinity where the column is later than the row, elsewhere 0.
  static at::Tensor later_positions(std::int64_t length, at::Device device, at::ScalarType type) {
    const auto options = at::TensorOptions(device).dtype(type);
    return torch::full({length, length}, -std::numeric_limits<double>::infinity(), options).triu(1);
  }

  std::int64_t width;
  std::int64_t heads;
  bool causal;
  at::Tensor in_proj_weight;
  at::Tensor in_proj_bias;
  torch::nn::Linear out_proj{nullptr};
};
TORCH_MODULE(SelfAttention);

struct TransformerLayerImpl : torch::nn::Cloneable<TransformerLayerImpl> {
  TransformerLayerImpl(const TransformerShape& shape_, bool causal_)
      : shape(shape_), causal(causal_) {
    reset();
  }

  void reset() override {
    self_attn = register_module("self_attn", SelfAttention(shape.width, shape.heads, causal));
    linear1 = register_module("linear1", torch::nn::Linear(shape.width, shape.hidden));
    linear2 = register_module("linear2", torch::nn::Linear(shape.hidden, shape.width));
    norm1 = register_module("norm1", normalization(shape.width));
    norm2 = register_module("norm2", normalization(shape.width));
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor seen = input + self_attn(norm1(input));
    return seen + linear2(torch::gelu(linear1(norm2(seen))));
  }

  TransformerShape shape;
  bool causal;
  SelfAttention self_attn{nullptr};
  torch::nn::Linear linear1{nullptr}, linear2{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(TransformerLayer);

struct MeanOfLengthImpl : torch::nn::Cloneable<MeanOfLengthImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& input) { return input.mean(1); }
};
TORCH_MODULE(MeanOfLength);

// The sum of a vector for the byte and one for its position.
struct ByteEmbeddingImpl : torch::nn::Cloneable<ByteEmbeddingImpl> {
  ByteEmbeddingImpl(std::int64_t context_, std::int64_t width_) : context(context_), width(width_) {
    reset();
  }

  void reset() override {
    byte = register_module("byte", torch::nn::Embedding(kBytes, width));
    position = register_module("position", torch::nn::Embedding(context, width));
    torch::nn::init::normal_(byte->weight, 0, kEmbeddingDeviation);
    torch::nn::init::normal_(position->weight, 0, kEmbeddingDeviation);
  }

  at::Tensor forward(const at::Tensor& bytes) {
    const at::Tensor positions = torch::arange(bytes.size(1), bytes.options().dtype(at::kLong));
    return byte(bytes.to(at::kLong)) + position(positions);
  }

  std::int64_t context;
  std::int64_t width;
  torch::nn::Embedding byte{nullptr}, position{nullptr};
};
TORCH_MODULE(ByteEmbedding);

NamedSequential layers_of(const TransformerShape& shape, bool causal) {
  NamedSequential layers;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    layers->push_back(TransformerLayer(shape, causal));
  }
  return layers;
}

}  // namespace

torch::nn::Sequential transformer(const TransformerShape& shape, std::int64_t classes) {
  auto net = NamedSequentialImpl::make();
  net->push_back("layers", layers_of(shape, /*causal=*/false));
  net->push_back("norm", normalization(shape.width));
  net->push_back("mean", MeanOfLength());
  net->push_back("head", torch::nn::Linear(shape.width, classes));
  return net;
}

torch::nn::Sequential byte_transformer(const TransformerShape& shape, std::int64_t context) {
  auto net = NamedSequentialImpl::make();
  net->push_back("embedding", ByteEmbedding(context, shape.width));
  net->push_back("layers", layers_of(shape, /*causal=*/true));
  net->push_back("norm", normalization(shape.width));
  net->push_back("head", torch::nn::Linear(shape.width, kBytes));
  return net;
}

}  // namespace lockstep::nets
