// SPDX-License-Identifier: BSD-3-Clause
// Ranks that others wait for in vain, and what messages say of them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

// By what they were last seen waiting in, as describe(Call) says it; "" if that is not known, or
// past.
using Absent = std::map<std::string, std::vector<int>>;

// "rank 3 (pid 12), and rank 1 (pid 10), rank 2 (pid 11), last seen waiting in barrier #1"
std::string describe(const Absent& absent, const std::function<std::string(int rank)>& name);

}  // namespace lockstep
