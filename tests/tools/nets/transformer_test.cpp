// SPDX-License-Identifier: BSD-3-Clause
// Transformers: what a position sees, and the types and lengths that they take.
#include "tools/nets/transformer.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace lockstep::nets {
namespace {

constexpr TransformerShape kShape{.layers = 2, .width = 16, .heads = 2, .hidden = 32};

TEST(ByteTransformer, SeesNoLaterByte) {
  torch::manual_seed(0);
  auto net = byte_transformer(kShape, 10);
  const at::Tensor bytes = torch::randint(256, {3, 10}, at::kByte);
  const at::Tensor scores = net->forward(bytes);
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({3, 10, 256}));
  const at::Tensor changed = bytes.clone();
  changed.select(1, 6).add_(1);  // 255 becomes 0
  const at::Tensor changes = (net->forward(changed) - scores).abs().amax({0, 2});
  EXPECT_LT(changes.slice(0, 0, 6).max().item<float>(), 1e-6);
  EXPECT_GT(changes.slice(0, 6).min().item<float>(), 1e-5);
}

TEST(ByteTransformer, TakesAnyIntegerTypeAndShorterTexts) {
  auto net = byte_transformer(kShape, 10);
  const at::Tensor bytes = torch::randint(256, {3, 10}, at::kByte);
  const at::Tensor scores = net->forward(bytes);
  EXPECT_TRUE(torch::equal(net->forward(bytes.to(at::kLong)), scores));
  EXPECT_TRUE(
      torch::allclose(net->forward(bytes.slice(1, 0, 4)), scores.slice(1, 0, 4), 1e-4, 1e-5));
}

TEST(Transformer, SeesAllPositions) {
  torch::manual_seed(0);
  auto net = transformer(kShape, 5);
  const at::Tensor input = torch::randn({3, 10, 16});
  const at::Tensor scores = net->forward(input);
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({3, 5}));
  const at::Tensor changed = input.clone();
  changed.select(1, 9).neg_();  // the norms would undo a sum
  EXPECT_GT((net->forward(changed) - scores).abs().max().item<float>(), 1e-5);
  // The order does not count, since there is no position in the input.
  EXPECT_TRUE(torch::allclose(net->forward(input.flip(1)), scores, 1e-4, 1e-5));
}

TEST(ByteTransformer, HasTheNamesOfPythonsLayers) {
  const auto parameters = byte_transformer(kShape, 10)->named_parameters();
  for (const char* name :
       {"embedding.byte.weight", "layers.1.self_attn.in_proj_weight", "layers.1.norm2.bias",
        "layers.0.self_attn.out_proj.bias", "layers.0.linear2.weight", "head.bias"}) {
    EXPECT_NE(parameters.find(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace lockstep::nets
