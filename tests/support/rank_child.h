// SPDX-License-Identifier: BSD-3-Clause
// What happens in a rank process between fork and exit.
#pragma once

#include <functional>

#include "support/rank_state.h"

namespace lockstep::testing {

// Runs the function, tells the test how it ended and what failed in it, and leaves the process
// without running the test program's destructors.
[[noreturn]] void run_child(Rank::State& state, Rank& rank,
                            const std::function<void(Rank&)>& function);

}  // namespace lockstep::testing
