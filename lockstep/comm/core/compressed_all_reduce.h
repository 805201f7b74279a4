// SPDX-License-Identifier: BSD-3-Clause
// An all-reduce whose elements travel as 16-bit numbers.
#pragma once

#include <chrono>
#include <functional>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/types/work.h"

namespace lockstep {

// Whether the call has a wire type, and its tensor's elements are wider than that type.
bool asks_for_compression(const CollectiveArgs& args);

// Carries out such a call, of one tensor: scales and rounds the elements, adds up the ranks'
// rounded elements by `start`, which gets a sum of a tensor of the wire type, and widens the
// result. A scale that comes before the sum keeps it within the range of the wire type. Ranks
// compare the whole call.
Work start_compressed(const CollectiveArgs& args, int ranks, std::chrono::milliseconds timeout,
                      const std::function<Work(const CollectiveArgs&)>& start);

}  // namespace lockstep
