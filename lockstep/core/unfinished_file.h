// SPDX-License-Identifier: BSD-3-Clause
// A file under a name of its own until it is finished. What a killed process leaves is removed by
// the next one that writes into the same folder.
#pragma once

#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Empty at first, and for this process alone: it holds a lock on the file, which the kernel gives
// back however the process ends. Without it a leftover could not be told from the file of another
// container or host, whose process numbers mean nothing here.
class UnfinishedFile {
 public:
  // folder is open for reading and outlives this object. First removes those of processes that have
  // ended; on a file system without locks, none. Throws std::system_error.
  UnfinishedFile(int folder, mode_t mode);
  // Removes it unless it got its name.
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  int fd() const { return fd_.get(); }
  // Gives it the name in its folder, instead of the file that has it. False, with errno, if that
  // cannot be.
  bool finish(const std::string& name);

 private:
  bool create(mode_t mode);

  int folder_;
  std::string name_;
  UniqueFd fd_;
};

}  // namespace lockstep
