// SPDX-License-Identifier: BSD-3-Clause
// Public. The errors that Lockstep throws. Each message says what happened, on which rank, in which
// operation, and what to do. The library does not print errors, and never exits.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something impossible, such as a wrong option. Unless the function says
// otherwise, nothing has changed. The group remains usable unless the ranks' calls differ or a
// backward threw.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Another rank ended, left its group or gave up. The group that reports it is unusable.
class PeerLost : public Error {
 public:
  // left: the rank left the group normally. failed: it died or gave up.
  enum class How { failed, left };

  PeerLost(int rank, const std::string& message, How how = How::failed)
      : Error(message), rank_(rank), how_(how) {}
  // The lost rank, numbered within the group that reports it.
  int rank() const { return rank_; }
  How how() const { return how_; }

 private:
  int rank_;
  How how_;
};

// A wait reached its deadline. The message says what was waited for.
class TimeoutError : public Error {
 public:
  explicit TimeoutError(const std::string& message, int rank = -1) : Error(message), rank_(rank) {}
  // The first missing rank, numbered within the group that reports it; -1 if no rank is known to be
  // at fault.
  int rank() const { return rank_; }

 private:
  int rank_;
};

// The system, the network or a library failed: no memory, no socket, no GPU.
class BackendError : public Error {
 public:
  using Error::Error;
};

// A file of tensors is damaged, incomplete or hostile, or does not fit. The message names the file
// or the model, the entry and the value.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

// libtorch appends a stack trace below the first line of its messages.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace lockstep
