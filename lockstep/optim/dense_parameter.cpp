// SPDX-License-Identifier: BSD-3-Clause
// Copies tensors only if their elements lie in another order.
#include "lockstep/optim/dense_parameter.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/kernels/reduce.h"
#include "lockstep/tensor/kernels/stream_copy.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep::optim {
namespace {

// In bytes. A part of this size would not stay in another rank's cache until its next forward, so
// it is stored past the caches.
constexpr std::size_t kLarge = 1024 * 1024;

constexpr std::size_t kFewRanks = 8;

// Whether elements of the same index lie, with their values, in the same places. Strides of a
// dimension of one element do not matter.
bool lies_like(const at::Tensor& tensor, const at::Tensor& values) {
  if (tensor.device() != values.device() || tensor.sizes() != values.sizes()) return false;
  if (is_lazy(tensor)) return false;
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
      is_copy_(!parameter.is_non_overlapping_and_dense() || is_lazy(parameter)) {
  if (is_copy_) values_ = parameter.clone();
  if (!lies_like(gradient_, values_)) {
    gradient_ = copied_like(gradient_, values_, values_.scalar_type());
  }
}

DenseParameter::DenseParameter(const at::Tensor& parameter, ElementRange part,
                               const OtherRanks& others)
    : DenseParameter(parameter) {
  others_ = others;
  is_part_ = true;
  values_ = in_memory_order(values_).narrow(0, part.begin, part.count);
  gradient_ = in_memory_order(gradient_).narrow(0, part.begin, part.count);
}

DenseParameter::DenseParameter(const LoggedPart& logged)
    : parameter_(logged.part->parameter),
      values_(logged.part->values),
      logged_(logged),
      is_part_(true) {}

void DenseParameter::fit(at::Tensor& state, std::size_t kind) const {
  if (is_logged()) {
    state = logged_.part->state[kind];
    return;
  }
  const at::ScalarType type = state_type(values_.scalar_type());
  if (!state.defined()) {
    state = at::zeros_like(values_, values_.options().dtype(type));
  } else if (state.scalar_type() != type || !lies_like(state, values_)) {
    state = copied_like(state, values_, type);
  }
}

void DenseParameter::average_gradients(std::int64_t begin, std::int64_t end) const {
  if (others_.gradients.empty()) return;
  const std::int64_t offset = begin * gradient_.element_size();
  c10::SmallVector<const void*, kFewRanks> from;
  for (const std::byte* const gradient : others_.gradients) from.push_back(gradient + offset);
  void* const to = static_cast<std::byte*>(gradient_.data_ptr()) + offset;
  reduce(from, {&to, 1}, end - begin, gradient_.scalar_type(), ReduceOp::mean,
         scale_over(static_cast<int>(from.size()), ReduceOp::mean, 1));
}

void DenseParameter::store_copies(std::int64_t begin, std::int64_t end) const {
  const std::int64_t element_size = values_.element_size();
  const auto bytes = static_cast<std::size_t>((end - begin) * element_size);
  const auto* const from = static_cast<const std::byte*>(values_.data_ptr()) + begin * element_size;
  const bool is_large = values_.nbytes() >= kLarge;
  for (std::byte* const copy : others_.copies) {
    std::byte* const to = copy + begin * element_size;
    if (is_large) {
      stream_copy(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
}

void DenseParameter::commit() const {
  if (is_part_) return;
  if (is_copy_) {
    parameter_.copy_(values_);
  } else {
    parameter_.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep::optim
