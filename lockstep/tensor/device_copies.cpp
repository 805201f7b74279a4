// SPDX-License-Identifier: BSD-3-Clause
// Copies tensors to a device, and results back to the originals.
#include "lockstep/tensor/device_copies.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

at::Tensor usable_on(at::Device device, const at::Tensor& tensor) {
  // The usual case, in which even detach() would take longer than a short call.
  if (is_usable_on(device, tensor)) return tensor;
  const at::NoGradGuard no_grad;
  const at::Tensor plain = tensor.detach();
  // copy_() computes the elements of a lazy tensor.
  const at::Tensor values =
      is_lazy(plain) ? at::empty(plain.sizes(), plain.options()).copy_(plain) : plain;
  return values.to(device).contiguous();
}

const at::Tensor& DeviceCopies::copy_of(const at::Tensor& original) {
  return copies_.emplace_back(Copy{original, usable_on(device_, original)}).staged;
}

at::Tensor DeviceCopies::output_as(const at::Tensor& original, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  at::Tensor staged = original.detach().to(device_, type).contiguous();
  copies_.push_back({original, staged});
  return staged;
}

bool DeviceCopies::go_elsewhere() const {
  return std::ranges::any_of(
      copies_, [this](const Copy& copy) { return copy.original.device() != device_; });
}

void DeviceCopies::copy_back() {
  if (copies_.empty()) return;  // the usual case
  const at::NoGradGuard no_grad;
  for (auto& copy : copies_) {
    copy.original.copy_(copy.staged.view_as(copy.original));
    if (device_.is_cpu()) continue;
    // The copy may belong to another stream, which would otherwise reuse its memory at once.
    const c10::impl::VirtualGuardImpl device(device_.type());
    device.recordDataPtrOnStream(copy.staged.storage().data_ptr(), device.getStream(device_));
  }
  copies_.clear();
}

}  // namespace lockstep
