// SPDX-License-Identifier: BSD-3-Clause
// Slurm's lists of hosts, as `scontrol show hostnames` expands them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The first `at_most` hosts of a list such as "gpu[01-02,07]-ib0,rack[1-2]node[1-4]": names
// separated by commas or spaces, in which a set in brackets stands for its numbers, written with as
// many digits as a range's first has. Of several sets, the last changes first. UsageError, showing
// the list, if it is not one, has no host, or a name may exceed the 255 characters of a host name.
// The time does not depend on how many hosts there are.
std::vector<std::string> expand_hostlist(std::string_view list, std::size_t at_most);

}  // namespace lockstep
