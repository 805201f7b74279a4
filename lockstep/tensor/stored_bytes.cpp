// SPDX-License-Identifier: BSD-3-Clause
// Reads from a span, or from a file with pread.
#include "lockstep/tensor/stored_bytes.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

StoredBytes bytes_in_memory(std::span<const std::byte> bytes) {
  return {bytes.size(), [bytes](std::size_t offset, std::span<std::byte> output) {
            if (!output.empty()) std::memcpy(output.data(), bytes.data() + offset, output.size());
          }};
}

StoredBytes bytes_in_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  // O_NONBLOCK, so that opening a pipe does not block.
  const auto fd =
      std::make_shared<UniqueFd>(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!*fd) {
    throw UsageError(errno == ENOENT ? fmt::format("{}: there is no such file", name)
                                     : fmt::format("{}: cannot be opened for reading: {}", name,
                                                   reason_of(errno)));
  }
  struct stat status {};
  if (::fstat(fd->get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw UsageError(fmt::format("{}: this is not a regular file", name));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  return {size, [fd, name, size](std::size_t offset, std::span<std::byte> output) {
            while (!output.empty()) {
              const ssize_t got =
                  ::pread(fd->get(), output.data(), output.size(), static_cast<off_t>(offset));
              if (got < 0 && errno == EINTR) continue;
              if (got <= 0) {
                throw BackendError(
                    fmt::format("{}: only {} of {} bytes could be read{}", name, offset, size,
                                got < 0 ? ": " + reason_of(errno) : ", it has become shorter"));
              }
              offset += static_cast<std::size_t>(got);
              output = output.subspan(static_cast<std::size_t>(got));
            }
          }};
}

}  // namespace lockstep
