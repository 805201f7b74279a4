// SPDX-License-Identifier: BSD-3-Clause
// One end of a message between two ranks: the tensor that this rank sends or receives.
#pragma once

#include <optional>
#include <utility>

#include "lockstep/comm/core/task.h"
#include "lockstep/comm/local/host_tensor.h"

namespace lockstep::local {

class Message final : public Task {
 public:
  // `call` is a send or recv. `part_of` is the collective that the message belongs to, if any.
  Message(const Call& call, HostTensor tensor, std::optional<Call> part_of = {})
      : Task(call), tensor_(std::move(tensor)), part_of_(part_of) {}

  // The call that the user made: the collective, or else the send or recv.
  const Call& known_as() const { return part_of_ ? *part_of_ : call(); }

  std::byte* data() const { return tensor_.data(); }
  std::int64_t bytes() const { return tensor_.bytes(); }

 private:
  HostTensor tensor_;
  std::optional<Call> part_of_;
};

}  // namespace lockstep::local
