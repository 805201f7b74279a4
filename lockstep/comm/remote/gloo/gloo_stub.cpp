// SPDX-License-Identifier: BSD-3-Clause
// In the place of gloo_group.cpp where there are no headers of Gloo.
#include "lockstep/comm/remote/gloo/gloo_group.h"
#include "lockstep/core/error.h"

namespace lockstep {

bool gloo_built_in() {
  return false;
}

std::shared_ptr<ProcessGroup> make_gloo_group(Membership, GroupOptions, const std::string&) {
  throw BackendError(
      "backend \"gloo\" is not built into this Lockstep: it needs Gloo's headers (Debian: apt-get "
      "install libgloo-dev) when Lockstep is configured, and a libtorch with distributed support");
}

}  // namespace lockstep
