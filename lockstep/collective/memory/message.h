// SPDX-License-Identifier: BSD-3-Clause
// A tensor on its way from one rank to another.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/collective/memory/task.h"

namespace lockstep::memory {

class Message final : public Task {
 public:
  // The tensor is contiguous and in host memory. `direction` is send or recv.
  Message(Collective direction, at::Tensor tensor, int peer)
      : Task({.collective = direction,
              .type = tensor.scalar_type(),
              .root = peer,
              .elements = tensor.numel()}),
        tensor_(std::move(tensor)) {}

  std::byte* data() const { return static_cast<std::byte*>(tensor_.data_ptr()); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(tensor_.nbytes()); }

 private:
  at::Tensor tensor_;
};

}  // namespace lockstep::memory
