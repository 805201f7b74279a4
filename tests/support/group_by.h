// SPDX-License-Identifier: BSD-3-Clause
// A group over one backend, for tests that do not leave the choice to init_process_group.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

// `make` is make_gloo_backend or another, with its further arguments.
template <class Make, class... Arguments>
std::shared_ptr<ProcessGroup> group_by(const Make& make, Membership membership,
                                       GroupOptions options, Arguments&&... arguments) {
  auto backend = make(membership, options, std::forward<Arguments>(arguments)...);
  return std::make_shared<ProcessGroup>(std::move(membership), std::move(options),
                                        std::move(backend));
}

}  // namespace lockstep::testing
