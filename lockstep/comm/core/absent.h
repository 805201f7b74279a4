// SPDX-License-Identifier: BSD-3-Clause
// The ranks that a timed-out wait still waited for, and their description in messages.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

// Ranks by the call that they were last seen waiting in, as describe(Call) puts it; "" if that call
// is unknown or past.
using Absent = std::map<std::string, std::vector<int>>;

// "rank 3 (pid 12), and rank 1 (pid 10), rank 2 (pid 11), last seen waiting in barrier #1"
std::string describe(const Absent& absent, const std::function<std::string(int rank)>& name);

}  // namespace lockstep
