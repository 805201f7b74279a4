// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks on one or more machines, joined by libtorch's own Gloo over TCP.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Blocks until all ranks have joined. Messages call the backend `name`.
std::shared_ptr<Backend> make_gloo_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name);

}  // namespace lockstep
