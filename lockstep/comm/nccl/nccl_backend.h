// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks with a GPU each, joined by NCCL. Waiting for a Work has the current stream
// wait, as in PyTorch: the thread goes on. A peer that dies or does not come meanwhile is seen by a
// thread of the group's, which ends NCCL's work; the next call on the group tells of it. With
// TORCH_NCCL_BLOCKING_WAIT=1 the thread waits, and the wait throws; so it does for results in host
// memory. Ask the group for something, a barrier, before what must not be built on a failed call,
// as a checkpoint: else a failure in the last call is told to nobody.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Empty if NCCL can be loaded; else why not.
std::string why_not_nccl();
// "2.27.5"; BackendError if it cannot be loaded.
std::string nccl_version();

// BackendError without NCCL; UsageError unless options.device is a GPU, which no other rank of the
// group may have. Messages are about the backend of this name.
std::shared_ptr<Backend> make_nccl_backend(const Membership& membership,
                                           const GroupOptions& options,
                                           const std::string& name = "nccl");

}  // namespace lockstep
