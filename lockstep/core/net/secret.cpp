// SPDX-License-Identifier: BSD-3-Clause
// Reads the secret and checks the file's owner, mode and length.
#include "lockstep/core/net/secret.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeast = 16;
constexpr std::size_t kMost = 4096;

// `what` names the file in messages.
std::string contents(int fd, const std::string& what) {
  std::string secret(kMost + 1, '\0');
  const ssize_t count = ::pread(fd, secret.data(), secret.size(), 0);
  if (count < 0) throw UsageError(fmt::format("{}: {}", what, std::strerror(errno)));
  secret.resize(static_cast<std::size_t>(count));
  if (secret.size() < kLeast || secret.size() > kMost) {
    throw UsageError(fmt::format(
        "{}: it must have {} to {} bytes, as `head -c 32 /dev/urandom` makes them, and has {}",
        what, kLeast, kMost,
        secret.size() > kMost ? fmt::format("more than {}", kMost)
                              : std::to_string(secret.size())));
  }
  return secret;
}

}  // namespace

std::string read_secret(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw UsageError(fmt::format("secret file {}: {}", file, std::strerror(errno)));
  }
  // fstat of the open file: its name may lead elsewhere by now.
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0177) != 0) {
    throw UsageError(fmt::format(
        "secret file {}: it must be a file of this user's own that nobody else can read; its mode "
        "is {:04o} (chmod 600 {})",
        file, status.st_mode & 07777, file));
  }
  return contents(fd.get(), "secret file " + file);
}

std::string read_secret(int fd) {
  const std::string what = fmt::format("secret of descriptor {}", fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw UsageError(fmt::format("{}: {}; the process that started this one must leave it open",
                                 what, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw UsageError(fmt::format(
        "{}: it must be a file opened for reading, for example with {}<FILE in a shell; a pipe "
        "could be read by one rank only",
        what, fd));
  }
  return contents(fd, what);
}

std::string secret_of_environment() {
  const auto file = environment(kSecretFileVariable);
  const auto fd = environment_int(kSecretFdVariable);
  if (file && fd) {
    throw UsageError(fmt::format("{}={} and {}={} are both set; keep one of them",
                                 kSecretFileVariable, *file, kSecretFdVariable, *fd));
  }
  if (fd) return read_secret(*fd);
  return file ? read_secret(*file) : "";
}

}  // namespace lockstep
