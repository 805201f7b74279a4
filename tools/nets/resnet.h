// SPDX-License-Identifier: BSD-3-Clause
// The residual networks of He et al. 2015, "Deep Residual Learning for Image Recognition": a stem
// of a 7 x 7 convolution and max pooling, four stages of blocks, one linear layer.
#pragma once

#include <cstdint>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::nets {

// The networks map images [N, channels, H, W] to [N, classes]. Parameters and buffers have the
// names and, for the same seed, the first weights of torchvision's models.
//
// Their normalizations are lockstep::SyncBatchNorms without a group, which compute what
// torch::nn::BatchNorm2d computes until convert_sync_batchnorm gives them one.

// Per stage two blocks of two 3 x 3 convolutions.
torch::nn::Sequential resnet18(std::int64_t classes, std::int64_t channels = 3);
// Stages of 3, 4, 6 and 3 blocks: a 3 x 3 convolution, which has the stride, between two 1 x 1
// ones.
torch::nn::Sequential resnet50(std::int64_t classes, std::int64_t channels = 3);

}  // namespace lockstep::nets
