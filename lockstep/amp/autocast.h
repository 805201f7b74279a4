// SPDX-License-Identifier: BSD-3-Clause
// Public. Runs operations in half precision where that pays off, as Python's torch.autocast does:
//
//   at::Tensor loss;
//   {
//     const lockstep::Autocast autocast(input.device());
//     loss = cross_entropy(model(input), target);
//   }
//   loss.backward();
//
// Parameters and gradients keep their types. With float16, scale the loss: grad_scaler.h.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

// While it lives, operations of this thread on tensors of the device's type convert their inputs as
// PyTorch's lists of operations say: layers to half precision, losses and sums to float. A
// DataParallel that the thread calls does the same in its workers. Guards may be nested, and must
// be destroyed in reverse order by the thread that made them. Backward belongs outside, as in
// PyTorch.
class Autocast {
 public:
  // The default type is the thread's autocast type: bfloat16 on CPUs and float16 on GPUs, unless it
  // was changed. `enabled = false` turns autocast off for a part of the model.
  // UsageError if the device is neither a CPU nor a GPU, if the type is neither float16 nor
  // bfloat16, and for float16 on a CPU before libtorch 2.3, which lacks the kernels.
  explicit Autocast(c10::Device device, std::optional<c10::ScalarType> type = {},
                    bool enabled = true);
  // Restores what was before. The outermost guard also drops the converted weights that libtorch
  // keeps, since the optimizer is about to change the weights.
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  c10::ScalarType cpu_type_before_;
  c10::ScalarType cuda_type_before_;
};

}  // namespace lockstep
