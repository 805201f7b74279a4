// SPDX-License-Identifier: BSD-3-Clause
// Available memory, /dev/shm and the address-space limit.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lockstep/core/process/cpu.h"
#include "tools/doctor/bytes.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

std::string shared_memory_folder() {
  struct statvfs file_system {};
  if (::statvfs("/dev/shm", &file_system) != 0) return "no /dev/shm";
  const auto size = static_cast<std::int64_t>(file_system.f_blocks * file_system.f_frsize);
  return in_bytes(size) + " in /dev/shm";
}

}  // namespace

Finding probe_memory() {
  const auto total = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const std::string found =
      fmt::format("{} available of {}; {}, which Lockstep does not need",
                  in_bytes(available_memory()), in_bytes(total), shared_memory_folder());
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return {.found = found};
  }
  return {.state = Finding::State::note,
          .found = fmt::format("{}; the address space of a process is limited to {} (RLIMIT_AS)",
                               found, in_bytes(static_cast<std::int64_t>(limit.rlim_cur))),
          .advice =
              "raise it with ulimit -v if memory cannot be allocated though it is there: "
              "libraries and the peers' shared memory count too"};
}

}  // namespace lockstep
