// SPDX-License-Identifier: BSD-3-Clause
// What an error in one of the groups that make up a hierarchical group means for the group of all
// ranks.
#pragma once

#include <exception>

#include "lockstep/comm/hierarchical/hierarchy_levels.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep::hierarchical {

// If the error says that ranks made different calls, aborts all the groups with a UsageError on
// every rank. Ranks that wait in another group's call cannot see the difference.
void end_groups_if_calls_differ(HierarchyLevels& levels, const std::exception_ptr& error);

// Aborts all the groups, and throws the error of a phase as the group of all ranks sees it. A group
// within a host does not know a rank's number in the whole group, and a rank that gave up may have
// done so because of another rank. `waited` is the deadline of the wait, for the message.
[[noreturn]] void explain(const std::exception_ptr& error, HierarchyLevels& levels,
                          const ErrorContext& context, const Deadline& waited);

}  // namespace lockstep::hierarchical
