// SPDX-License-Identifier: BSD-3-Clause
// Public. Dropout whose random numbers belong to the microbatch, so that they do not depend on the
// rank, the replica or the thread that computes it:
//
//   torch::nn::Sequential net{torch::nn::Linear(784, 256), lockstep::Dropout(0.5)};
#pragma once

#include <ostream>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/dropout.h>
#include <torch/nn/pimpl.h>

namespace lockstep {

// In training mode, zeroes each element with the probability p, independently, and divides the
// others by 1 - p, as torch::nn::Dropout does. Under a Trainer with .microbatches, seed, step,
// microbatch and the number of the draw in the forward decide which elements; otherwise PyTorch's
// default generator does. In evaluation mode, returns the input.
//
// torch::nn::Dropout gives the same bits for any number of ranks too, if they are processes. The
// replicas of a DataParallel and ranks that are threads share the default generator: there a
// Trainer with .microbatches refuses it.
class DropoutImpl : public torch::nn::Cloneable<DropoutImpl> {
 public:
  explicit DropoutImpl(double p = 0.5) : DropoutImpl(torch::nn::DropoutOptions(p)) {}
  // UsageError unless p is from 0 to 1.
  explicit DropoutImpl(const torch::nn::DropoutOptions& options_);

  at::Tensor forward(const at::Tensor& input);
  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  torch::nn::DropoutOptions options;
};
TORCH_MODULE(Dropout);

}  // namespace lockstep
