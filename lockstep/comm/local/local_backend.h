// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks that reach each other's memory. Tensors on other devices, or with other
// strides, go through a contiguous copy in host memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/local/peers.h"

namespace lockstep::local {

// Joins the ranks of a membership, which are ranks of this group. `name` distinguishes the subgroup
// from the group's others.
using Subgroup = std::function<std::shared_ptr<Backend>(
    const std::string& name, const Membership& membership, const GroupOptions& options)>;

std::shared_ptr<Backend> make_local_backend(std::unique_ptr<Peers> peers,
                                            const Membership& membership, GroupOptions options,
                                            Subgroup subgroup);

}  // namespace lockstep::local
