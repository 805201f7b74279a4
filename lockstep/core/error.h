// SPDX-License-Identifier: BSD-3-Clause
// Public. The errors that Lockstep throws. Each message says what happened, on which rank, in which
// operation, and what to do. The library does not print errors, and never exits.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Where an error occurred. What does not apply keeps its default.
struct ErrorContext {
  // "gloo", "DistributedDataParallel"
  std::string component = {};
  // "all_reduce", "reducing gradients"
  std::string operation = {};
  // The number of the group's call.
  std::int64_t call = -1;
  // The function of the library that made the call: "accuracy()".
  std::string caller = {};
  // This rank, in a group of `size` ranks.
  int rank = -1;
  int size = 0;

  // The beginning of a message: "[gloo] all_reduce #42, rank 1 of 4: ".
  std::string prefix() const;
};

// What an error's message is made of.
struct ErrorDetails {
  std::string cause = {};
  std::string remedy = {};
  // The other rank that the error is about, numbered within the group that reports it; -1 if none.
  int peer = -1;
  // From the outermost to the innermost.
  std::vector<ErrorContext> contexts = {};
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& cause);
  // The message is "[component] operation #call, rank R of S: cause; remedy".
  Error(ErrorContext context, const std::string& cause, const std::string& remedy = {});
  explicit Error(ErrorDetails details);

  const ErrorDetails& details() const { return details_; }
  // Returns a copy of this error, of its type, with other parts.
  virtual std::exception_ptr with(ErrorDetails details) const;

 protected:
  // Replaces the parts, and with them the message.
  void replace(ErrorDetails details);

 private:
  ErrorDetails details_;
};

// The base of each type of error: with() returns a Type. A type that derives from another one names
// it as Base:
//
//   class StoreLost : public ErrorType<StoreLost, BackendError> {
//    public:
//     using ErrorType::ErrorType;
//   };
template <class Type, class Base = Error>
class ErrorType : public Base {
 public:
  using Base::Base;

  std::exception_ptr with(ErrorDetails details) const override {
    Type copy = static_cast<const Type&>(*this);
    copy.replace(std::move(details));
    return std::make_exception_ptr(std::move(copy));
  }
};

// The caller asked for something impossible, such as a wrong option. Unless the function says
// otherwise, nothing has changed. The group remains usable unless the ranks' calls differ or a
// backward threw.
class UsageError : public ErrorType<UsageError> {
 public:
  using ErrorType::ErrorType;
};

// Another rank ended, left its group or gave up. The group that reports it is unusable.
class PeerLost : public ErrorType<PeerLost> {
 public:
  // left: the rank left the group normally. failed: it died or gave up.
  enum class How { failed, left };

  PeerLost(int rank, const std::string& cause, How how = How::failed)
      : PeerLost(ErrorDetails{.cause = cause, .peer = rank}, how) {}
  explicit PeerLost(ErrorDetails details, How how = How::failed)
      : ErrorType(std::move(details)), how_(how) {}
  // The lost rank, numbered within the group that reports it.
  int rank() const { return details().peer; }
  How how() const { return how_; }

 private:
  How how_;
};

// A wait reached its deadline. The message says what was waited for.
class TimeoutError : public ErrorType<TimeoutError> {
 public:
  using ErrorType::ErrorType;
  explicit TimeoutError(const std::string& cause, int rank = -1)
      : ErrorType(ErrorDetails{.cause = cause, .peer = rank}) {}
  // The first missing rank, numbered within the group that reports it; -1 if no rank is known to be
  // at fault.
  int rank() const { return details().peer; }
};

// The system, the network or a library failed: no memory, no socket, no GPU.
class BackendError : public ErrorType<BackendError> {
 public:
  using ErrorType::ErrorType;
};

// A file of tensors is damaged, incomplete or hostile, or does not fit. The message names the file
// or the model, the entry and the value.
class CheckpointError : public ErrorType<CheckpointError> {
 public:
  using ErrorType::ErrorType;
};

// libtorch appends a stack trace below the first line of its messages.
std::string first_line(const std::exception& error);

// The parts of an error, with `context` outside the contexts that it has; any other exception's
// first line becomes the cause.
ErrorDetails within(const ErrorContext& context, const std::exception& error);

// What a rank tells others about its error, without its own rank and the remedy: "all_reduce #42:
// waited 5.0 s for rank 3".
std::string short_message(const std::exception& error);

// Rethrows the exception being handled: an Error with `context` outside the contexts that it has,
// and `hint` behind its message; any other exception as it is.
[[noreturn]] void rethrow_within(const ErrorContext& context, const std::string& hint = {});

}  // namespace lockstep
