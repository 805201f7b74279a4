// SPDX-License-Identifier: BSD-3-Clause
// A file that has a temporary name until it is finished. If a process is killed before that, the
// next one that writes into the same folder removes the file.
#pragma once

#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Empty at first. This process holds a lock on the file, which the kernel releases however the
// process ends. Without the lock a leftover could not be told from the file of another container or
// host, whose process numbers mean nothing here.
class UnfinishedFile {
 public:
  // folder is open for reading and outlives this object. First removes the files of processes that
  // have ended; on a file system without locks, none. Throws std::system_error.
  UnfinishedFile(int folder, mode_t mode);
  // Removes the file unless it is finished.
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  int fd() const { return fd_.get(); }
  // Gives the file its final name, replacing any file of that name. False, with errno, if that
  // fails.
  bool finish(const std::string& name);

 private:
  bool create(mode_t mode);

  int folder_;
  std::string name_;
  UniqueFd fd_;
};

}  // namespace lockstep
