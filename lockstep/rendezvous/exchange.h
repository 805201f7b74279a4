// SPDX-License-Identifier: BSD-3-Clause
// Every rank tells all others something before they are connected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// A collective call over the membership's store, blocking: what each rank says, in their order.
// Calls on one topic go together in the order in which ranks make them. TimeoutError names a rank
// that says nothing.
std::vector<std::string> exchange(const Membership& membership, std::string_view topic,
                                  const std::string& text, const Deadline& deadline);

}  // namespace lockstep
