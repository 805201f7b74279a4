// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/bench/resnet.h"

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

// Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where the shape changes.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : body(convolution(in, out, 3, stride), torch::nn::BatchNorm2d(out), torch::nn::ReLU(),
             convolution(out, out, 3, 1), torch::nn::BatchNorm2d(out)) {
    register_module("body", body);
    if (stride == 1 && in == out) return;
    shortcut = torch::nn::Sequential(convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }

  at::Tensor forward(const at::Tensor& input) {
    return torch::relu(body->forward(input) + (shortcut ? shortcut->forward(input) : input));
  }

  torch::nn::Sequential body;
  torch::nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Block);

}  // namespace

torch::nn::Sequential resnet18(std::int64_t classes) {
  torch::nn::Sequential net(
      convolution(3, 64, 7, 2), torch::nn::BatchNorm2d(64), torch::nn::ReLU(),
      torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
  std::int64_t in = 64;
  for (const std::int64_t out : {64, 128, 256, 512}) {
    net->push_back(Block(in, out, out == in ? 1 : 2));
    net->push_back(Block(out, out, 1));
    in = out;
  }
  net->push_back(torch::nn::AdaptiveAvgPool2d(1));
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(in, classes));
  return net;
}

}  // namespace lockstep::bench
