// SPDX-License-Identifier: BSD-3-Clause
// The warnings of spawn() in programs that link the base without libtorch, on standard error.
#include <cstdio>

#include "lockstep/launch/spawn.h"

namespace lockstep::spawn_detail {

void warn(const std::string& warning) {
  std::fprintf(stderr, "warning: %s\n", warning.c_str());
}

}  // namespace lockstep::spawn_detail
