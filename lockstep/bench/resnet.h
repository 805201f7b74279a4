// SPDX-License-Identifier: BSD-3-Clause
// ResNet-18 of He et al. 2015, "Deep Residual Learning for Image Recognition": a stem of a 7 x 7
// convolution and max pooling, four stages of two blocks each, one linear layer.
#pragma once

#include <cstdint>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

// Takes images [N, 3, H, W], gives [N, classes].
torch::nn::Sequential resnet18(std::int64_t classes);

}  // namespace lockstep::bench
