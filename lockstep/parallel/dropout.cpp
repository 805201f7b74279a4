// SPDX-License-Identifier: BSD-3-Clause
// Draws a mask from a generator that the microbatch keys.
#include "lockstep/parallel/dropout.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/microbatch.h"

namespace lockstep {

DropoutImpl::DropoutImpl(const torch::nn::DropoutOptions& options_) : options(options_) {
  const double p = options.p();
  if (p >= 0 && p <= 1) return;
  throw UsageError({.component = "Dropout"}, fmt::format("p is {}", p), "give a p from 0 to 1");
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  const double p = options.p();
  Microbatch* const microbatch = MicrobatchScope::current();
  if (!is_training() || p == 0 || microbatch == nullptr)
    return at::dropout(input, p, is_training());
  if (p == 1) return input * 0;
  // On the CPU, also for a GPU, so that a draw does not depend on the device.
  const at::Generator generator =
      at::detail::createCPUGenerator(microbatch->key(++microbatch->draws));
  at::Tensor mask = at::empty(input.sizes(), input.options().device(at::kCPU).layout(at::kStrided));
  {
    const at::NoGradGuard no_grad;
    mask.bernoulli_(1 - p, generator).div_(1 - p);
  }
  return input * mask.to(input.device());
}

void DropoutImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::Dropout(p=" << options.p() << ")";
}

}  // namespace lockstep
