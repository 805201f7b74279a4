// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/system_error.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/resource.h>

namespace lockstep {

std::string reason_of(int error) {
  rlimit limit{};
  if (error == ENFILE) return fmt::format("{} on this machine (fs.file-max)", std::strerror(error));
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::strerror(error);
  return fmt::format("{} in this process, which may have {}; raise that limit (ulimit -n)",
                     std::strerror(error), limit.rlim_cur);
}

}  // namespace lockstep
