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

// Half of the groups' timeout.
inline constexpr std::chrono::seconds kLongBeforeTimeout{15};

// A pattern for the beginning of the messages of this rank in such a call.
std::string beginning(const TestedBackend& backend, const Rank& rank, std::string_view operation,
                      std::string_view origin = "");
// The same in a ring, which either was under way or found the rank missing when it began.
std::string beginning_of_ring(const TestedBackend& backend, const Rank& rank);

// Expects PeerLost that names the victim, and that the group goes on saying so.
void expect_lost(Rank& rank, ProcessGroup& group, int victim,
                 const std::vector<std::string>& patterns, const std::function<void()>& function);

// Expects, once this rank knows of the victim's death, that it has learnt of it soon: within two
// seconds in which no rank lacked a core, and long before the timeout in any case.
void expect_soon(const Rank& rank, int victim);

// The first and the last rank, which a backend may treat as special.
std::vector<int> victims(int size);

}  // namespace lockstep::testing
