// SPDX-License-Identifier: BSD-3-Clause
// Packs the type and the parts of an error, of which the other process makes the message again.
#include "lockstep/core/packed_error.h"

#include <cstddef>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/packing.h"

namespace lockstep {
namespace {

enum class ErrorKind { error, usage, lost, left, timeout, backend, checkpoint };

ErrorKind error_kind(const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return ErrorKind::usage;
  if (const auto* const lost = dynamic_cast<const PeerLost*>(&error)) {
    return lost->how() == PeerLost::How::left ? ErrorKind::left : ErrorKind::lost;
  }
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return ErrorKind::timeout;
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return ErrorKind::checkpoint;
  if (dynamic_cast<const BackendError*>(&error) != nullptr) return ErrorKind::backend;
  return dynamic_cast<const Error*>(&error) != nullptr ? ErrorKind::error : ErrorKind::backend;
}

std::exception_ptr make_error(ErrorKind kind, ErrorDetails details) {
  switch (kind) {
    case ErrorKind::error:
      break;
    case ErrorKind::usage:
      return std::make_exception_ptr(UsageError(std::move(details)));
    case ErrorKind::lost:
      return std::make_exception_ptr(PeerLost(std::move(details)));
    case ErrorKind::left:
      return std::make_exception_ptr(PeerLost(std::move(details), PeerLost::How::left));
    case ErrorKind::timeout:
      return std::make_exception_ptr(TimeoutError(std::move(details)));
    case ErrorKind::backend:
      return std::make_exception_ptr(BackendError(std::move(details)));
    case ErrorKind::checkpoint:
      return std::make_exception_ptr(CheckpointError(std::move(details)));
  }
  return std::make_exception_ptr(Error(std::move(details)));
}

}  // namespace

std::string pack_error(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  const ErrorDetails details =
      own != nullptr ? own->details() : ErrorDetails{.cause = first_line(error)};
  std::string packed = pack(error_kind(error), details.cause, details.remedy, details.peer);
  for (const ErrorContext& context : details.contexts) {
    packed += pack(context.component, context.operation, context.call, context.caller, context.rank,
                   context.size);
  }
  return packed;
}

std::exception_ptr unpack_error(std::string_view bytes) {
  Unpacking packed(bytes);
  const auto kind = packed.next<ErrorKind>();
  ErrorDetails details;
  packed.read_all(details.cause, details.remedy, details.peer);
  while (!packed.done()) {
    ErrorContext& context = details.contexts.emplace_back();
    packed.read_all(context.component, context.operation, context.call, context.caller,
                    context.rank, context.size);
  }
  return make_error(kind, std::move(details));
}

}  // namespace lockstep
