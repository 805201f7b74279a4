// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks on one machine, joined through memory that all of them map.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Blocks until all ranks have joined, for options.timeout at most. Its name is "shm" in any case.
std::shared_ptr<Backend> make_shm_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& name = "shm");

}  // namespace lockstep
