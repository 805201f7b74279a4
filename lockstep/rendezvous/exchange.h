// SPDX-License-Identifier: BSD-3-Clause
// Exchanges a text between all ranks before they are connected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Collective and blocking, over the membership's store. Returns the text of each rank, in rank
// order. The n-th calls of all ranks on one topic belong together. TimeoutError names a rank that
// did not contribute.
std::vector<std::string> exchange(const Membership& membership, std::string_view topic,
                                  const std::string& text, const Deadline& deadline);

}  // namespace lockstep
