// SPDX-License-Identifier: BSD-3-Clause
// Copies tensors only if their elements lie in another order.
#include "lockstep/optim/dense_parameter.h"

#include <cstdint>

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>

#include "lockstep/optim/kernels/element_types.h"

namespace lockstep::optim {
namespace {

// Whether elements of the same index lie in the same places. Strides of a dimension of one element
// do not matter.
bool lies_like(const at::Tensor& tensor, const at::Tensor& values) {
  if (tensor.device() != values.device() || tensor.sizes() != values.sizes()) return false;
  for (std::int64_t i = 0; i < values.dim(); ++i) {
    if (values.size(i) > 1 && tensor.stride(i) != values.stride(i)) return false;
  }
  return true;
}

at::Tensor copied_like(const at::Tensor& tensor, const at::Tensor& values, at::ScalarType type) {
  return at::empty_like(values, values.options().dtype(type)).copy_(tensor);
}

at::Tensor in_memory_order(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

}  // namespace

at::Tensor part_of(const at::Tensor& tensor, const at::Tensor& parameter, ElementRange part) {
  return in_memory_order(copied_like(tensor, parameter, tensor.scalar_type()))
      .narrow(0, part.begin, part.count)
      .clone();
}

DenseParameter::DenseParameter(const at::Tensor& parameter)
    : parameter_(parameter),
      values_(parameter),
      gradient_(parameter.grad()),
      is_copy_(!parameter.is_non_overlapping_and_dense()) {
  if (is_copy_) values_ = parameter.clone();
  if (!lies_like(gradient_, values_)) {
    gradient_ = copied_like(gradient_, values_, values_.scalar_type());
  }
}

DenseParameter::DenseParameter(const at::Tensor& parameter, ElementRange part)
    : DenseParameter(parameter) {
  values_ = in_memory_order(values_).narrow(0, part.begin, part.count);
  gradient_ = in_memory_order(gradient_).narrow(0, part.begin, part.count);
}

void DenseParameter::fit(at::Tensor& state) const {
  const at::ScalarType type = state_type(values_.scalar_type());
  if (!state.defined()) {
    state = at::zeros_like(values_, values_.options().dtype(type));
  } else if (state.scalar_type() != type || !lies_like(state, values_)) {
    state = copied_like(state, values_, type);
  }
}

void DenseParameter::commit() const {
  if (is_copy_) {
    parameter_.copy_(values_);
  } else {
    parameter_.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep::optim
