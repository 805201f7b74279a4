// SPDX-License-Identifier: BSD-3-Clause
// A group of one: what a program that was started alone gets, so that its loop need not change.
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

std::shared_ptr<ProcessGroup> make_self_group(Membership membership, GroupOptions options);

}  // namespace lockstep
