// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks that are threads of one process. They reduce tensors in place, whatever
// allocated them.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Returns a function that joins one of `size` ranks to the others. Each rank calls it once; it does
// not block.
std::function<std::shared_ptr<Backend>(const Membership& membership, const GroupOptions& options)>
join_threads(int size);

}  // namespace lockstep
