// SPDX-License-Identifier: BSD-3-Clause
// Output that should appear once, not once per rank.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// On rank 0, writes the line to standard output and flushes it; does nothing on other ranks. No
// communication.
void print0(const ProcessGroup& group, std::string_view line);
void print0(const std::shared_ptr<ProcessGroup>& group, std::string_view line);

}  // namespace lockstep
