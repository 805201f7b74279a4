// SPDX-License-Identifier: BSD-3-Clause
// A tensor on its way from one rank to another.
#pragma once

#include <utility>

#include "lockstep/collective/memory/host_tensor.h"
#include "lockstep/collective/memory/task.h"

namespace lockstep::memory {

class Message final : public Task {
 public:
  // `direction` is send or recv.
  Message(Collective direction, HostTensor tensor, int peer)
      : Task({.collective = direction,
              .type = tensor.type(),
              .root = peer,
              .elements = tensor.elements()}),
        tensor_(std::move(tensor)) {}

  std::byte* data() const { return tensor_.data(); }
  std::int64_t bytes() const { return tensor_.bytes(); }

 private:
  HostTensor tensor_;
};

}  // namespace lockstep::memory
