// SPDX-License-Identifier: BSD-3-Clause
// Lays the gradients' views over a bucket's buffer.
#include "lockstep/parallel/bucket.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace lockstep {

Bucket::Bucket(int index, const PlannedBucket& plan, std::span<const at::Tensor> parameters,
               ProcessGroup& group)
    : index_(index), parameters_(plan.parameters) {
  // optimizer.zero_grad() detaches gradients in place, which views known to autograd refuse. Views
  // made below its dispatch keys are tensors of their own that share the memory.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor& first = parameters[static_cast<std::size_t>(plan.parameters.front())];
  const c10::ScalarType dtype = first.scalar_type();
  const c10::ScalarType real = c10::toRealValueType(dtype);
  const auto options = at::TensorOptions().dtype(real).device(first.device());
  flat_ = group.empty({plan.elements * (real == dtype ? 1 : 2)}, options);
  flat_.zero_();  // the padding is reduced too, and must not hold slow or trapping bit patterns
  const at::Tensor typed = real == dtype ? flat_ : at::view_as_complex(flat_.view({-1, 2}));

  const std::int64_t start = typed.storage_offset();
  gradients_.reserve(plan.parameters.size());
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[static_cast<std::size_t>(plan.parameters[i])];
    const std::int64_t offset = start + plan.offsets[i];
    if (parameter.is_non_overlapping_and_dense()) {
      gradients_.push_back(typed.as_strided(parameter.sizes(), parameter.strides(), offset));
    } else {
      gradients_.push_back(
          typed.narrow(0, plan.offsets[i], parameter.numel()).view(parameter.sizes()));
    }
  }
  trailer_ = typed.narrow(0, plan.trailer, size());

  element_size_ = static_cast<std::size_t>(typed.element_size());
  const at::Tensor one = at::ones({1}, at::TensorOptions().dtype(dtype));
  std::memcpy(one_.data(), one.data_ptr(), element_size_);
  if (trailer_.is_cpu()) trailer_bytes_ = static_cast<std::byte*>(trailer_.data_ptr());
}

void Bucket::set_all_used() {
  if (!trailer_bytes_) {
    trailer_.fill_(1);
    return;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    std::memcpy(trailer_bytes_ + i * element_size_, one_.data(), element_size_);
  }
}

void Bucket::set_unused(int i) {
  if (!trailer_bytes_) {
    trailer_.select(0, i).zero_();
    return;
  }
  std::memset(trailer_bytes_ + static_cast<std::size_t>(i) * element_size_, 0, element_size_);
}

bool Bucket::used_by_any_rank(int i) const {
  if (!trailer_bytes_) return trailer_.select(0, i).ne(0).item<bool>();
  const std::byte* element = trailer_bytes_ + static_cast<std::size_t>(i) * element_size_;
  return std::any_of(element, element + element_size_,
                     [](std::byte byte) { return byte != std::byte{0}; });
}

}  // namespace lockstep
