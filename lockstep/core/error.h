// SPDX-License-Identifier: BSD-3-Clause
// The errors that Lockstep throws. The library never prints and never exits: each message says
// what happened, on which rank, in which operation, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something that cannot be: a wrong option, a mismatched call. Nothing was
// changed.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Another rank ended, left its group or gave up. The group that reports it is unusable.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& message) : Error(message), rank_(rank) {}
  // The rank that was lost, counted in the group that reports it.
  int rank() const { return rank_; }

 private:
  int rank_;
};

// A wait reached its deadline. The message names who was waited for.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

// The system, the network or an engine underneath refused: no memory, no socket, no GPU.
class BackendError : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
