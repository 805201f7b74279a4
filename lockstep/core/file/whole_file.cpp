// SPDX-License-Identifier: BSD-3-Clause
// Checks a path, then writes an unfinished file, flushes it and renames it over the old one.
#include "lockstep/core/file/whole_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_errno(int error) {
  throw std::system_error(error, std::generic_category());
}

fs::path follow_links(const fs::path& file) {
  constexpr int kMostLinks = 40;  // the kernel's own limit
  fs::path target = fs::absolute(file);
  for (int links = 0; fs::is_symlink(fs::symlink_status(target)); ++links) {
    if (links == kMostLinks) throw_errno(ELOOP);
    target = target.parent_path() / fs::read_symlink(target);
  }
  return target;
}

// Errors that a user can fix by naming another file.
bool is_path_error(int error) {
  constexpr std::array kErrors{ENOENT, ENOTDIR, EISDIR, EACCES,      EPERM,
                               EROFS,  ELOOP,   EINVAL, ENAMETOOLONG};
  return std::ranges::find(kErrors, error) != kErrors.end();
}

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw UsageError(
      fmt::format("cannot write \"{}\": {}; choose a file in an existing, writable folder",
                  file.string(), why));
}

// The mount point of this folder's file system.
fs::path mount_point(fs::path folder) {
  const auto device = [](const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_dev : dev_t{};
  };
  while (folder.has_relative_path() && device(folder.parent_path()) == device(folder)) {
    folder = folder.parent_path();
  }
  return folder;
}

// Fails silently on a file system without modes or owners.
void keep_mode_and_owner(int fd, const struct stat& old) {
  mode_t mode = old.st_mode & 07777;
  struct stat own {};
  ::fstat(fd, &own);
  const bool same = own.st_uid == old.st_uid && own.st_gid == old.st_gid;
  if (!same && ::fchown(fd, old.st_uid, old.st_gid) != 0) {
    mode &= 0777;
    // If the old group cannot be kept, the new group does not get its permissions.
    const bool group_stays =
        own.st_gid == old.st_gid || ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) == 0;
    if (!group_stays) mode = (mode & ~mode_t{070}) | ((mode & 07) << 3);
  }
  static_cast<void>(::fchmod(fd, mode));
}

// Turns the signal for a file that outgrows `ulimit -f`, which would kill the process, into the
// error EFBIG.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlock() {
    const timespec at_once{};
    ::sigtimedwait(&signal_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlock(const FileSizeSignalBlock&) = delete;
  FileSizeSignalBlock& operator=(const FileSizeSignalBlock&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

std::string size_words(std::uint64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / 0x1p20;
  return mebibytes < 0.1 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} MiB", mebibytes);
}

}  // namespace

WholeFile::WholeFile(const fs::path& file) : file_(file) {
  try {
    open();
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    if (is_path_error(code)) refuse(file_, std::strerror(code));
    fail(code);
  }
}

void WholeFile::open() {
  if (!file_.has_filename()) refuse(file_, "this names no file");
  target_ = follow_links(file_);
  if (!target_.has_filename()) throw_errno(EISDIR);
  // Readable, too: otherwise files left there by killed processes could not be found.
  folder_ = UniqueFd(::open(target_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_) throw_errno(errno);
  struct stat old {};
  if (::fstatat(folder_.get(), target_.filename().c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0) {
    old_ = old;
    require_replaceable();
  } else if (errno != ENOENT) {
    throw_errno(errno);
  }
  // Only this user may read it until it has the old file's mode; a new file's mode follows the
  // umask.
  unfinished_ = std::make_unique<UnfinishedFile>(folder_.get(), old_ ? 0600 : 0666);
}

// Without these checks the rename would fail after all the work, or replace something that must
// stay.
void WholeFile::require_replaceable() const {
  const auto name = target_.filename();
  if (!S_ISREG(old_->st_mode)) refuse(file_, "this is not a file");
  if (::faccessat(folder_.get(), name.c_str(), W_OK, AT_EACCESS) != 0) throw_errno(errno);
  struct stat folder {};
  ::fstat(folder_.get(), &folder);
  const uid_t user = ::geteuid();
  const bool belongs_to_other = old_->st_uid != user && folder.st_uid != user && user != 0;
  if ((folder.st_mode & S_ISVTX) != 0 && belongs_to_other) throw_errno(EPERM);
  struct statx extended {};
  if (::statx(folder_.get(), name.c_str(), AT_SYMLINK_NOFOLLOW, 0, &extended) == 0 &&
      (extended.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
    refuse(file_, "this file is a mount point, which cannot be replaced");
  }
}

void WholeFile::write(const void* data, std::size_t bytes) noexcept {
  needed_ += bytes;
  const FileSizeSignalBlock block;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0 && error_ == 0) {
    const ssize_t written = ::write(unfinished_->fd(), next, bytes);
    if (written > 0) {
      next += written;
      bytes -= static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      error_ = written == 0 ? EIO : errno;
    }
  }
}

void WholeFile::commit() {
  if (old_) keep_mode_and_owner(unfinished_->fd(), *old_);
  // Flushed before the rename: otherwise a power cut could leave an empty file under the name.
  if (error_ == 0 && ::fsync(unfinished_->fd()) != 0) error_ = errno;
  if (error_ == 0 && !unfinished_->finish(target_.filename())) error_ = errno;
  unfinished_.reset();  // before the free space is measured
  if (error_ != 0) fail(error_);
  if (::fsync(folder_.get()) == 0 || errno == EINVAL)
    return;  // some file systems do not support this
  throw BackendError(fmt::format("{} is written, but its folder cannot be flushed to the disk: {}",
                                 file_.string(), std::strerror(errno)));
}

void WholeFile::fail(int error) const {
  std::string why = std::strerror(error);
  const bool no_space = error == ENOSPC || error == EDQUOT || error == EFBIG;
  if (no_space && needed_ > 0) why += fmt::format(": {} are needed", size_words(needed_));
  struct statvfs disk {};
  if (error == ENOSPC && folder_ && ::fstatvfs(folder_.get(), &disk) == 0) {
    std::error_code ignored;
    why += fmt::format("{} {} are free on {}; make room there, or name another file",
                       needed_ > 0 ? "," : ":", size_words(disk.f_bavail * disk.f_frsize),
                       mount_point(fs::canonical(target_.parent_path(), ignored)).string());
  }
  throw BackendError(fmt::format("cannot write {}: {}", file_.string(), why));
}

void check_can_write(const fs::path& file) {
  const WholeFile probe(file);
}

}  // namespace lockstep
