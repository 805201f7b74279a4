// SPDX-License-Identifier: BSD-3-Clause
// A group of ranks that reach each other's memory. Tensors on other devices and with other strides
// go through a contiguous copy in host memory.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/local/engine.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::local {

// Joins the ranks of a membership that have left this group; `name` tells it from the group's
// others.
using Subgroup = std::function<std::shared_ptr<ProcessGroup>(
    const std::string& name, Membership membership, GroupOptions options)>;

std::shared_ptr<ProcessGroup> make_local_group(std::unique_ptr<Peers> peers, Membership membership,
                                               GroupOptions options, Subgroup subgroup);

}  // namespace lockstep::local
