// SPDX-License-Identifier: BSD-3-Clause
// A file that has a temporary name until it is finished. If the process is killed before that, the
// next process that writes into the same folder removes the file.
#pragma once

#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Empty at first. This process holds a lock on the file, which the kernel releases however the
// process ends. Without the lock, a leftover would look like the live file of another container or
// host, whose process ids mean nothing here.
class UnfinishedFile {
 public:
  // `folder` is a descriptor that is open for reading and outlives this object. First removes the
  // files of processes that have ended; on a file system without locks, removes none. Throws
  // std::system_error.
  UnfinishedFile(int folder, mode_t mode);
  // Removes the file unless it is finished.
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  int fd() const { return fd_.get(); }
  // Gives the file its final name and replaces any file of that name. On failure returns false and
  // sets errno.
  bool finish(const std::string& name);

 private:
  bool create(mode_t mode);

  int folder_;
  std::string name_;
  UniqueFd fd_;
};

}  // namespace lockstep
