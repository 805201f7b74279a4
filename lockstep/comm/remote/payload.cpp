// SPDX-License-Identifier: BSD-3-Clause
// Allocates byte tensors, and views and joins the bytes of tensors.
#include "lockstep/comm/remote/payload.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

namespace lockstep::remote {

at::Tensor uninitialized_bytes(std::int64_t bytes) try {
  return at::empty({bytes}, at::kByte);
} catch (const std::exception& error) {
  throw OutOfMemory(fmt::format("this rank has no memory for {} bytes on their way: {}", bytes,
                                first_line(error)));
}

std::byte* first_byte(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return bytes_of(tensor, 0, static_cast<std::int64_t>(tensor.nbytes()));
}

at::Tensor bytes_of(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  if (!tensor.is_cpu()) return tensor.detach().view({-1}).view(at::kByte).narrow(0, first, count);
  return at::from_blob(
      first_byte(tensor) + first, {count}, [storage = tensor.storage()](void*) {}, at::kByte);
}

at::Tensor bytes_in_place(const std::vector<at::Tensor>& tensors) {
  const std::byte* next = first_byte(tensors.front());
  for (const auto& tensor : tensors) {
    if (first_byte(tensor) != next || !tensor.is_alias_of(tensors.front())) return {};
    next += tensor.nbytes();
  }
  return bytes_of(tensors.front(), 0, next - first_byte(tensors.front()));
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return uninitialized_bytes(0);
  if (at::Tensor in_place = bytes_in_place(tensors); in_place.defined()) return in_place;
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  const at::Tensor result = uninitialized_bytes(bytes);
  std::byte* cursor = first_byte(result);
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(cursor, tensor.data_ptr(), tensor.nbytes());
    cursor += tensor.nbytes();
  }
  return result;
}

void scatter_bytes(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors) {
  const std::byte* cursor = first_byte(bytes);
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), cursor, tensor.nbytes());
    cursor += tensor.nbytes();
  }
}

}  // namespace lockstep::remote
