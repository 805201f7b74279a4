// SPDX-License-Identifier: BSD-3-Clause
// The bytes that schedules send and receive, as byte tensors. All tensors here are contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"

namespace lockstep::remote {

// There is not enough memory for a schedule's temporary data.
class OutOfMemory : public ErrorType<OutOfMemory, BackendError> {
 public:
  using ErrorType::ErrorType;
};

// Uninitialized bytes in host memory. OutOfMemory if there is not enough memory.
at::Tensor uninitialized_bytes(std::int64_t bytes);

std::byte* first_byte(const at::Tensor& tensor);

// A tensor's bytes, or a part of them, on its device and in its storage, which the result keeps.
at::Tensor bytes_of(const at::Tensor& tensor);
at::Tensor bytes_of(const at::Tensor& tensor, std::int64_t first, std::int64_t count);

// The tensors' bytes where they are, if they lie one after the other in one storage; else
// undefined. At least one tensor; all are in host memory.
at::Tensor bytes_in_place(const std::vector<at::Tensor>& tensors);
// The tensors' bytes, one after the other: in place, or copied. All are in host memory.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
// Copies the bytes, which lie as in joined(), back into the tensors.
void scatter_bytes(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::remote
