// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/whole_file.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

// Absolute, and where a symbolic link leads: the link itself stays.
std::filesystem::path target_of(const std::filesystem::path& file) {
  return std::filesystem::weakly_canonical(std::filesystem::absolute(file));
}

std::filesystem::path temporary_beside(const std::filesystem::path& target) {
  auto temporary = target;
  temporary += fmt::format(".tmp-{}", ::getpid());
  return temporary;
}

// On the disk before it gets its name, or a power cut could leave an empty file under it.
void flush(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) {
    throw BackendError(
        fmt::format("{}: cannot be flushed to the disk: {}", path.string(), std::strerror(errno)));
  }
}

}  // namespace

void check_can_write(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format(
        "cannot write \"{}\": {}; name a file in a folder that is there and may be written",
        file.string(), why));
  };
  if (!file.has_filename()) refuse("this names no file");
  if (exists(file) && !is_regular_file(file)) refuse("this is not a file");
  const auto probe = temporary_beside(target_of(file));
  const UniqueFd fd(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) refuse(std::strerror(errno));
  ::unlink(probe.c_str());
}

void write_whole(const std::filesystem::path& file,
                 const std::function<void(const std::filesystem::path& temporary)>& write) {
  const auto target = target_of(file);
  const auto temporary = temporary_beside(target);
  try {
    write(temporary);
    flush(temporary);
    std::filesystem::rename(temporary, target);
    flush(target.parent_path());
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw BackendError(fmt::format("cannot write {}: {}", file.string(), first_line(error)));
  }
}

}  // namespace lockstep
