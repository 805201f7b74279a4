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

// Half of the groups' usual timeout.
inline constexpr std::chrono::seconds kLongBeforeTimeout{15};

// For groups that are to time out: enough for busy ranks to join and begin.
inline constexpr std::chrono::seconds kShortTimeout{5};

// A pattern for what the messages say of a death. Over a network, the end of a connection comes
// first, and a busy machine may take long to end the process.
std::string died_before(const TestedBackend& backend);
// A pattern for the beginning of the messages of this rank in such a call.
std::string beginning(const TestedBackend& backend, const Rank& rank, std::string_view operation,
                      std::string_view origin = "");
// The same in a ring, which either was under way or found the rank missing when it began.
std::string beginning_of_ring(const TestedBackend& backend, const Rank& rank);

// Expects PeerLost that names the victim, and that the group goes on saying so.
void expect_lost(Rank& rank, ProcessGroup& group, int victim,
                 const std::vector<std::string>& patterns, const std::function<void()>& function);

// Expects, once this rank knows of the victim's death, that it has learnt of it soon: within four
// seconds in which no rank lacked a core, and long before the timeout in any case.
void expect_soon(const Rank& rank, int victim);

// The first and the last rank, which a backend may treat as special.
std::vector<int> victims(int size);

}  // namespace lockstep::testing
