// SPDX-License-Identifier: BSD-3-Clause
// Explains failed system calls; tests the descriptor limit by opening descriptors.
#include "lockstep/core/system_error.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

std::string reason_of(int error) {
  rlimit limit{};
  if (error == ENFILE) return fmt::format("{} on this machine (fs.file-max)", std::strerror(error));
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::strerror(error);
  return fmt::format("{} in this process, which may have {}; raise that limit (ulimit -n)",
                     std::strerror(error), limit.rlim_cur);
}

void require_descriptors(const ErrorContext& context, int count) {
  std::vector<UniqueFd> opened;
  for (int i = 0; i < count; ++i) {
    opened.emplace_back(::eventfd(0, EFD_CLOEXEC));
    if (opened.back()) continue;
    throw BackendError(
        context, fmt::format("{} more descriptors are needed, but only {} can be had: {}", count, i,
                             reason_of(errno)));
  }
}

}  // namespace lockstep
