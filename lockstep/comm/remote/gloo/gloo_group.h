// SPDX-License-Identifier: BSD-3-Clause
// The ranks of one or more machines, joined by libtorch's own Gloo over TCP.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

bool gloo_built_in();

// Blocks until all ranks have joined. BackendError if this Lockstep was built without it.
// Messages are about the backend of this name.
std::shared_ptr<ProcessGroup> make_gloo_group(Membership membership, GroupOptions options,
                                              const std::string& name = "gloo");

}  // namespace lockstep
