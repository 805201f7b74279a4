// SPDX-License-Identifier: BSD-3-Clause
// Builds ResNets from basic or bottleneck blocks.
#include "tools/nets/resnet.h"

#include <array>
#include <string>

#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "lockstep/parallel/sync_batch_norm.h"
#include "tools/nets/named_sequential.h"

namespace lockstep::nets {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride = 1) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BlockShape {
  // Whether the block has three convolutions instead of two.
  bool bottleneck;
  std::int64_t in;
  // Channels of the 3 x 3 convolutions.
  std::int64_t width;
  std::int64_t stride;

  std::int64_t out() const { return bottleneck ? 4 * width : width; }
};

// Convolutions next to a shortcut, which is a 1 x 1 convolution if the shape changes.
struct ResidualBlockImpl : torch::nn::Cloneable<ResidualBlockImpl> {
  explicit ResidualBlockImpl(const BlockShape& shape_) : shape(shape_) { reset(); }

  void reset() override {
    const auto [bottleneck, in, width, stride] = shape;
    if (stride != 1 || in != shape.out()) {
      downsample = torch::nn::Sequential{convolution(in, shape.out(), 1, stride),
                                         SyncBatchNorm(shape.out())};
    }
    conv1 = register_module(
        "conv1", bottleneck ? convolution(in, width, 1) : convolution(in, width, 3, stride));
    bn1 = register_module("bn1", SyncBatchNorm(width));
    conv2 = register_module("conv2", convolution(width, width, 3, bottleneck ? stride : 1));
    bn2 = register_module("bn2", SyncBatchNorm(width));
    if (bottleneck) {
      conv3 = register_module("conv3", convolution(width, shape.out(), 1));
      bn3 = register_module("bn3", SyncBatchNorm(shape.out()));
    }
    if (downsample) register_module("downsample", downsample);
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor output = bn2(conv2(torch::relu(bn1(conv1(input)))));
    if (conv3) output = bn3(conv3(torch::relu(output)));
    return torch::relu(output + (downsample ? downsample->forward(input) : input));
  }

  BlockShape shape;
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  SyncBatchNorm bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(ResidualBlock);

// Draws the weights of convolutions again, as torchvision does after the constructors of the
// layers.
void draw_convolutions(torch::nn::Module& net) {
  for (const auto& module : net.modules()) {
    if (const auto* layer = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Sequential resnet(bool bottleneck, const std::array<int, 4>& blocks,
                             std::int64_t classes, std::int64_t channels) {
  auto net = NamedSequentialImpl::make();
  net->push_back("conv1", convolution(channels, 64, 7, 2));
  net->push_back("bn1", SyncBatchNorm(64));
  net->push_back("relu", torch::nn::ReLU());
  net->push_back("maxpool",
                 torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
  std::int64_t in = 64;
  std::int64_t width = 64;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage, width *= 2) {
    NamedSequential layer;
    for (int block = 0; block < blocks[stage]; ++block) {
      const BlockShape shape{.bottleneck = bottleneck,
                             .in = in,
                             .width = width,
                             .stride = block == 0 && stage > 0 ? 2 : 1};
      layer->push_back(ResidualBlock(shape));
      in = shape.out();
    }
    net->push_back("layer" + std::to_string(stage + 1), layer);
  }
  net->push_back("avgpool", torch::nn::AdaptiveAvgPool2d(1));
  net->push_back("flatten", torch::nn::Flatten());
  net->push_back("fc", torch::nn::Linear(in, classes));
  draw_convolutions(*net);
  return net;
}

}  // namespace

torch::nn::Sequential resnet18(std::int64_t classes, std::int64_t channels) {
  return resnet(false, {2, 2, 2, 2}, classes, channels);
}

torch::nn::Sequential resnet50(std::int64_t classes, std::int64_t channels) {
  return resnet(true, {3, 4, 6, 3}, classes, channels);
}

}  // namespace lockstep::nets
