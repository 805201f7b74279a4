// SPDX-License-Identifier: BSD-3-Clause
// File descriptors that close themselves, and a kind of them that forked children cannot use.
#pragma once

#include <utility>

#include <unistd.h>

namespace lockstep {

// Owns a descriptor; -1 for none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// A descriptor that a forked child cannot use: its number stays open there, but leads nowhere. So a
// connection ends with the process that made it, even if a child lives on.
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
