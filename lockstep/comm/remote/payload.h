// SPDX-License-Identifier: BSD-3-Clause
// The bytes that schedules send and receive, as tensors of bytes. All tensors here are contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"

namespace lockstep::remote {

// What a schedule keeps on its way found no place.
class OutOfMemory : public BackendError {
 public:
  using BackendError::BackendError;
};

// In host memory, of any value. OutOfMemory if there is no place for them.
at::Tensor some_bytes(std::int64_t bytes);

std::byte* first_byte(const at::Tensor& tensor);

// A tensor's bytes, or a part of them, on its device and in its storage, which stays as long.
at::Tensor bytes_of(const at::Tensor& tensor);
at::Tensor bytes_of(const at::Tensor& tensor, std::int64_t first, std::int64_t count);

// Copies the tensors' bytes one behind the other, and back. All are in host memory.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
void take_apart(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::remote
