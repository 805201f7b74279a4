// SPDX-License-Identifier: BSD-3-Clause
// A group of ranks that a transport joins, on one machine or many. Tensors on other devices than
// the transport's, and with other strides, go through a contiguous copy.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/remote/joining.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/comm/remote/transport.h"

namespace lockstep::remote {

// Joins the ranks of a membership by their transport.
using MakeTransport = std::function<std::unique_ptr<Transport>(
    const Membership& membership, Joining& joining, const Deadline& deadline)>;

// Blocks until all ranks have come. Its subgroups are made alike, with names of their own.
std::shared_ptr<ProcessGroup> make_remote_group(std::string backend, Membership membership,
                                                GroupOptions options, MakeTransport make_transport,
                                                const Schedules& schedules = {});

// For groups that are made of network groups and others. Any other group may be passed; nothing is
// compared or ended there.

// Calls `start`, which starts a part of the call `whole` on the group; ranks compare the whole call
// in its place. Not thread-safe.
Work start_part_of(const Call& whole, ProcessGroup& group, const std::function<Work()>& start);
// Whether its ranks compare calls.
bool compares_calls(const ProcessGroup& group);
// Ends the group for all its ranks, with a UsageError: they have made different calls.
void end_for_mismatch(ProcessGroup& group, const std::string& reason);

}  // namespace lockstep::remote
