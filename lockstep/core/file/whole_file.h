// SPDX-License-Identifier: BSD-3-Clause
// Files replaced as a whole: the name refers to the old content or to all of the new, even if the
// process is killed or the power fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <sys/stat.h>

#include "lockstep/core/file/unfinished_file.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Replaces a file or makes a new one. The old file's mode stays, and its owner if this process may
// keep it; other hard links to it keep the old content. A symbolic link stays, and its target is
// replaced or made.
//
// Blocks on the disk. Used by one thread at a time.
class WholeFile {
 public:
  // UsageError for a path that cannot be written: a missing or read-only folder, a name that is too
  // long, a directory, a file that is read-only or a mount point. BackendError if the system
  // refuses otherwise, as a full disk does.
  explicit WholeFile(const std::filesystem::path& file);

  // Appends. Does not throw, since libtorch's archive writer aborts if it cannot write: the first
  // error is kept for commit(), and later bytes are only counted as needed.
  void write(const void* data, std::size_t bytes) noexcept;

  // Flushes the file to the disk and gives it its name; without this call nothing changes.
  // BackendError with the system's reason and, if space was lacking, how much is needed and how
  // much is free; then nothing is left behind, and an older file is unchanged.
  void commit();

 private:
  void open();
  void require_replaceable() const;
  [[noreturn]] void fail(int error) const;

  // The path as the caller wrote it, for messages; the absolute path behind all links.
  std::filesystem::path file_;
  std::filesystem::path target_;
  UniqueFd folder_;
  // The status of the file to be replaced; nullopt if there is none.
  std::optional<struct stat> old_;
  std::unique_ptr<UnfinishedFile> unfinished_;
  std::uint64_t needed_ = 0;
  int error_ = 0;
};

// Throws what WholeFile's constructor would throw for this path, so that the error comes before
// long work. Leaves nothing behind.
void check_can_write(const std::filesystem::path& file);

}  // namespace lockstep
