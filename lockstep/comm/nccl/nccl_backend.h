// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks with a GPU each, joined by NCCL. As in PyTorch, waiting for a Work makes the
// current stream wait, and the thread goes on. A thread of the group notices a peer that dies or
// does not arrive meanwhile, and ends NCCL's work; the next call on the group throws the error.
// With TORCH_NCCL_BLOCKING_WAIT=1 the thread waits, and the wait throws; the same holds for results
// in host memory. Make another call, such as a barrier, before work that must not build on a failed
// call, such as a checkpoint: otherwise nothing reports a failure of the last call.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// "2.27.5"; BackendError if it cannot be loaded.
std::string nccl_version();

// BackendError without NCCL. UsageError unless options.device is a GPU; no other rank of the group
// may have the same one. Messages call the backend `name`.
std::shared_ptr<Backend> make_nccl_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name);

}  // namespace lockstep
