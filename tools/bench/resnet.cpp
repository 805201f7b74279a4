// SPDX-License-Identifier: BSD-3-Clause
// Builds ResNets from basic or bottleneck blocks.
#include "tools/bench/resnet.h"

#include <array>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

namespace lockstep::bench {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct Shape {
  std::int64_t in;
  // Channels of the 3 x 3 convolutions.
  std::int64_t width;
  std::int64_t out;
  std::int64_t stride;
};

torch::nn::Sequential two_convolutions(const Shape& shape) {
  return torch::nn::Sequential(convolution(shape.in, shape.width, 3, shape.stride),
                               torch::nn::BatchNorm2d(shape.width), torch::nn::ReLU(),
                               convolution(shape.width, shape.out, 3, 1),
                               torch::nn::BatchNorm2d(shape.out));
}

torch::nn::Sequential bottleneck(const Shape& shape) {
  return torch::nn::Sequential(
      convolution(shape.in, shape.width, 1, 1), torch::nn::BatchNorm2d(shape.width),
      torch::nn::ReLU(), convolution(shape.width, shape.width, 3, shape.stride),
      torch::nn::BatchNorm2d(shape.width), torch::nn::ReLU(),
      convolution(shape.width, shape.out, 1, 1), torch::nn::BatchNorm2d(shape.out));
}

using MakeBody = torch::nn::Sequential (*)(const Shape&);

// A body next to a shortcut, which is a 1 x 1 convolution if the shape changes.
struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  BlockImpl(MakeBody make_body_, Shape shape_) : make_body(make_body_), shape(shape_) { reset(); }

  void reset() override {
    body = register_module("body", make_body(shape));
    if (shape.stride == 1 && shape.in == shape.out) return;
    shortcut = register_module(
        "shortcut", torch::nn::Sequential(convolution(shape.in, shape.out, 1, shape.stride),
                                          torch::nn::BatchNorm2d(shape.out)));
  }

  at::Tensor forward(const at::Tensor& input) {
    return torch::relu(body->forward(input) + (shortcut ? shortcut->forward(input) : input));
  }

  MakeBody make_body;
  Shape shape;
  torch::nn::Sequential body{nullptr};
  torch::nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Block);

// `expansion` is the ratio of a block's output channels to those of its 3 x 3 convolutions.
torch::nn::Sequential resnet(MakeBody make_body, std::int64_t expansion,
                             const std::array<int, 4>& blocks, std::int64_t classes) {
  torch::nn::Sequential net(
      convolution(3, 64, 7, 2), torch::nn::BatchNorm2d(64), torch::nn::ReLU(),
      torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
  std::int64_t in = 64;
  std::int64_t width = 64;
  for (const int count : blocks) {
    for (int block = 0; block < count; ++block) {
      const std::int64_t stride = block == 0 && width > 64 ? 2 : 1;
      const Shape shape{.in = in, .width = width, .out = width * expansion, .stride = stride};
      net->push_back(Block(make_body, shape));
      in = shape.out;
    }
    width *= 2;
  }
  net->push_back(torch::nn::AdaptiveAvgPool2d(1));
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(in, classes));
  return net;
}

}  // namespace

torch::nn::Sequential resnet18(std::int64_t classes) {
  return resnet(two_convolutions, 1, {2, 2, 2, 2}, classes);
}

torch::nn::Sequential resnet50(std::int64_t classes) {
  return resnet(bottleneck, 4, {3, 4, 6, 3}, classes);
}

}  // namespace lockstep::bench
