// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks that a transport joins, on one machine or many. Tensors on devices other
// than the transport's, or with other strides, go through a contiguous copy.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/remote/joining.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/comm/remote/transport.h"

namespace lockstep::remote {

// The parts in which remote backends differ.
struct Parts {
  // Throws an error in `context` if this rank lacks something without which it cannot connect. May
  // be empty.
  std::function<void(const Membership& membership, const ErrorContext& context)> check = {};
  // Joins the ranks of a membership.
  std::function<std::unique_ptr<Transport>(const Membership& membership, Joining& joining,
                                           const Deadline& deadline)>
      join;
  Scheduler schedule = schedule_bytes;
  // The device of the transport's tensors.
  at::Device device = at::kCPU;
};

// Blocks until all ranks have joined. Subgroups are made in the same way, with names of their own.
std::shared_ptr<Backend> make_remote_backend(std::string name, const Membership& membership,
                                             const GroupOptions& options, Parts parts);

}  // namespace lockstep::remote
