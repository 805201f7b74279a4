// SPDX-License-Identifier: BSD-3-Clause
// A group of ranks that a carrier joins, on one machine or many. Tensors on other devices than the
// carrier's, and with other strides, go through a contiguous copy.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/collective/network/carrier.h"
#include "lockstep/collective/network/joining.h"
#include "lockstep/collective/network/plans.h"
#include "lockstep/collective/process_group.h"

namespace lockstep::network {

// Joins the ranks of a membership by their carrier.
using MakeCarrier = std::function<std::unique_ptr<Carrier>(
    const Membership& membership, Joining& joining, const Deadline& deadline)>;

// Blocks until all ranks have come. Its subgroups are made alike, with names of their own.
std::shared_ptr<ProcessGroup> make_network_group(std::string backend, Membership membership,
                                                 GroupOptions options, MakeCarrier make_carrier,
                                                 const Plans& plans = {});

// For groups that are made of network groups and others. Any other group may be passed; nothing is
// compared or ended there.

// Calls `start`, which starts a part of the call `whole` on the group; ranks compare the whole call
// in its place. Not thread-safe.
Work start_part_of(const Call& whole, ProcessGroup& group, const std::function<Work()>& start);
// Whether its ranks compare calls.
bool compares_calls(const ProcessGroup& group);
// Ends the group for all its ranks, with a UsageError: they have made different calls.
void end_for_mismatch(ProcessGroup& group, const std::string& reason);

}  // namespace lockstep::network
