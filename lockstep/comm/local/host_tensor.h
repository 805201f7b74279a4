// SPDX-License-Identifier: BSD-3-Clause
// The memory of a contiguous tensor on the host, as it is when a call starts.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::local {

// Keeps the memory, not the tensor. The tensor's owner may give it another storage meanwhile, or
// after an error, while a peer still writes here.
class HostTensor {
 public:
  // `tensor` must be contiguous and in host memory.
  HostTensor(const at::Tensor& tensor)
      : storage_(tensor.storage()),
        data_(static_cast<std::byte*>(tensor.data_ptr())),
        elements_(tensor.numel()),
        element_bytes_(tensor.element_size()),
        type_(tensor.scalar_type()) {}

  std::byte* data() const { return data_; }
  std::int64_t elements() const { return elements_; }
  std::int64_t element_bytes() const { return element_bytes_; }
  std::int64_t bytes() const { return elements_ * element_bytes_; }
  at::ScalarType type() const { return type_; }

 private:
  c10::Storage storage_;
  std::byte* data_;
  std::int64_t elements_;
  std::int64_t element_bytes_;
  at::ScalarType type_;
};

}  // namespace lockstep::local
