// SPDX-License-Identifier: BSD-3-Clause
// Machines that are smaller than this one.
#pragma once

#include <cstdint>
#include <filesystem>

#include <sys/resource.h>

namespace lockstep::testing {

// The calling process may take this much more address space than it has, and no more. False where
// that means nothing: sanitizers reserve address space as they like, and end where it is refused.
bool limit_memory(std::int64_t more_bytes);

// The calling process sees a /dev/shm that can hold so many bytes; with 0 one that cannot be
// written to. False if this machine does not let it have namespaces of its own.
bool limit_dev_shm(std::int64_t bytes);

// The calling process may open no descriptor more, or so many. Returns the limit that it had.
rlimit leave_no_descriptor(int more = 0);

// The calling process finds the folder empty: "/dev", "/proc". False as above.
bool hide_folder(const char* folder);

// The calling process sees an empty disk of so many bytes in the place of this folder. False as
// above.
bool mount_disk(const std::filesystem::path& folder, std::int64_t bytes);

// From now on a system call of this number (SYS_fsync) fails with this error in the calling
// process, and in those that it starts. False if the kernel does not let it.
bool fail_call(long number, int error);

}  // namespace lockstep::testing
