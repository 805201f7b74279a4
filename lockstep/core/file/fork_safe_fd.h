// SPDX-License-Identifier: BSD-3-Clause
// A file descriptor that a forked child cannot use: its number stays open there, but leads nowhere.
// So a connection ends with the process that made it, even if a child lives on.
#pragma once

#include "lockstep/core/unique_fd.h"

namespace lockstep {

class ForkSafeFd {
 public:
  ForkSafeFd() = default;
  explicit ForkSafeFd(UniqueFd fd);
  ForkSafeFd(ForkSafeFd&& other) noexcept = default;
  ForkSafeFd& operator=(ForkSafeFd&& other) noexcept;
  ~ForkSafeFd();

  int get() const { return fd_.get(); }
  explicit operator bool() const { return bool(fd_); }
  void reset();

 private:
  UniqueFd fd_;
};

}  // namespace lockstep
