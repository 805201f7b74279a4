// SPDX-License-Identifier: BSD-3-Clause
// Expecting that a rank is missed, and named.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/conformance/conformance.h"

namespace lockstep::testing {

// Survivors must know of a loss within this time.
inline constexpr std::chrono::seconds kSoon{2};

// A pattern for the beginning of the messages of this rank in such a call.
std::string beginning(const TestedBackend& backend, const Rank& rank, std::string_view operation);
// The same in a ring, which either was under way or found the rank missing when it began.
std::string beginning_of_ring(const TestedBackend& backend, const Rank& rank);

// Expects PeerLost that names the victim, and that the group goes on saying so.
void expect_lost(Rank& rank, ProcessGroup& group, int victim,
                 const std::vector<std::string>& patterns, const std::function<void()>& function);

// The first and the last rank, which a backend may treat as special.
std::vector<int> victims(int size);

}  // namespace lockstep::testing
