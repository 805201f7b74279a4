// SPDX-License-Identifier: BSD-3-Clause
// The parts of spawn() that need libtorch: tensors as results, and warnings.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/packing.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep::spawn_detail {
namespace {

at::Tensor contiguous_on_cpu(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw UsageError(fmt::format(
        "the function of spawn() returned a tensor ({} on {}) that is sparse, quantized or on the "
        "device meta; return an ordinary one, as to_dense() and dequantize() make it",
        toString(tensor.scalar_type()), tensor.device().str()));
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor copy = at::empty(tensor.sizes(), tensor.scalar_type());
  // Also resolves a lazy conjugation or negation.
  return copy.copy_(tensor);
}

}  // namespace

// Type, sizes and elements; nothing for an undefined tensor.
std::string ResultBytes<at::Tensor>::pack(const at::Tensor& tensor) {
  if (!tensor.defined()) return "";
  const at::Tensor elements = contiguous_on_cpu(tensor);
  const std::string_view bytes(static_cast<const char*>(elements.data_ptr()), elements.nbytes());
  return lockstep::pack(elements.scalar_type(), elements.sizes().vec(), bytes);
}

at::Tensor ResultBytes<at::Tensor>::unpack(const std::string& bytes) {
  if (bytes.empty()) return {};
  at::ScalarType type{};
  std::vector<std::int64_t> sizes;
  std::string_view elements;
  lockstep::unpack(bytes, type, sizes, elements);
  at::Tensor tensor = at::empty(sizes, type);
  if (elements.size() != tensor.nbytes()) {
    refuse_bytes(elements.size(), std::to_string(tensor.nbytes()));
  }
  if (!elements.empty()) std::memcpy(tensor.data_ptr(), elements.data(), elements.size());
  return tensor;
}

void warn(const std::string& warning) {
  libtorch::warn("spawn", warning);
}

}  // namespace lockstep::spawn_detail
