// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks that are threads of one process. They reduce tensors where they lie, whoever
// made them.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Returns what joins a rank of this many to the others; each rank calls it once, none waits.
std::function<std::shared_ptr<Backend>(const Membership& membership, const GroupOptions& options)>
join_threads(int size);

}  // namespace lockstep
