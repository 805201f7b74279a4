// SPDX-License-Identifier: BSD-3-Clause
// Locks the temporary file, and removes unlocked leftovers in its folder.
#include "lockstep/core/file/unfinished_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <random>
#include <string_view>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep {
namespace {

// Short, so that any file system that accepts the final name accepts this one too.
constexpr std::string_view kPrefix = ".lockstep-unfinished-";

bool lock(int fd) {
  return ::flock(fd, LOCK_EX | LOCK_NB) == 0;
}

bool has_name(int folder, const std::string& name, int fd) {
  struct stat named {};
  struct stat open {};
  return ::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(fd, &open) == 0 && named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

void remove_leftovers(int folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(
      ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), ::closedir);
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (!name.starts_with(kPrefix)) continue;
    const UniqueFd fd(::openat(folder, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    // A live writer holds the lock.
    if (fd && lock(fd.get()) && has_name(folder, name, fd.get())) {
      ::unlinkat(folder, name.c_str(), 0);
    }
  }
}

}  // namespace

UnfinishedFile::UnfinishedFile(int folder, mode_t mode) : folder_(folder) {
  remove_leftovers(folder);
  constexpr int kMostAttempts = 100;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (create(mode)) return;
    if (errno != EEXIST) break;
  }
  throw std::system_error(errno, std::generic_category());
}

// False with EEXIST if the name is taken, or if another process took the new file for a leftover
// before it was locked; then retry.
bool UnfinishedFile::create(mode_t mode) {
  name_ = fmt::format("{}{:08x}", kPrefix, std::random_device()());
  fd_ = UniqueFd(
      ::openat(folder_, name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd_) return false;
  const bool contested = !lock(fd_.get()) && errno == EWOULDBLOCK;
  if (!contested && has_name(folder_, name_, fd_.get())) return true;
  ::unlinkat(folder_, name_.c_str(), 0);
  errno = EEXIST;
  return false;
}

UnfinishedFile::~UnfinishedFile() {
  if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
}

bool UnfinishedFile::finish(const std::string& name) {
  if (::renameat(folder_, name_.c_str(), folder_, name.c_str()) != 0) return false;
  name_.clear();
  return true;
}

}  // namespace lockstep
