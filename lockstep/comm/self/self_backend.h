// SPDX-License-Identifier: BSD-3-Clause
// The backend of a group of one rank: every result is the rank's own input, scaled.
#pragma once

#include <memory>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

std::shared_ptr<Backend> make_self_backend(const Membership& membership,
                                           const GroupOptions& options);

}  // namespace lockstep
