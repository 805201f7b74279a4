// SPDX-License-Identifier: BSD-3-Clause
// A group of ranks that a carrier joins, on one machine or many. Tensors on other devices than the
// carrier's, and with other strides, go through a contiguous copy.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/collective/network/carrier.h"
#include "lockstep/collective/network/lifeline.h"
#include "lockstep/collective/network/plans.h"
#include "lockstep/collective/process_group.h"

namespace lockstep::network {

// Joins the ranks of a membership by their carrier, from the address that leads to the others.
using MakeCarrier = std::function<std::unique_ptr<Carrier>(
    const Membership& membership, const std::string& own_host, const Deadline& deadline)>;

// Blocks until all ranks have come. Its subgroups are made alike, with names of their own.
std::shared_ptr<ProcessGroup> make_network_group(std::string backend, Membership membership,
                                                 GroupOptions options, MakeCarrier make_carrier,
                                                 const Plans& plans = {});

// Whether ranks compare their calls before each, as PyTorch's TORCH_DISTRIBUTED_DEBUG=DETAIL wants.
bool calls_are_compared();

}  // namespace lockstep::network
