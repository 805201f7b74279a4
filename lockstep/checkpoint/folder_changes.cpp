// SPDX-License-Identifier: BSD-3-Clause
// System calls on a folder of checkpoints, whose errors become a BackendError.
#include "lockstep/checkpoint/folder_changes.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/file/remove_folder.h"
#include "lockstep/core/system_error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

void fail_to(const char* what, const std::filesystem::path& path, int error) {
  throw BackendError(fmt::format("cannot {} {}: {}", what, path.string(), reason_of(error)));
}

void flush_folder(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems do not support this.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) fail_to("flush", folder, errno);
}

void remove_tree(const std::filesystem::path& path) {
  if (const std::error_code error = remove_folder(path)) fail_to("remove", path, error.value());
}

void rename_to(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_to("make", to, errno);
}

}  // namespace lockstep
