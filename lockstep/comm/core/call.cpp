// SPDX-License-Identifier: BSD-3-Clause
// Describes calls, and the difference between two of them, for messages.
#include "lockstep/comm/core/call.h"

#include <utility>

#include <fmt/format.h>

namespace lockstep {

std::string title(const Call& call) {
  const std::string_view origin = name(call.origin);
  return fmt::format("{} #{}{}{}", name(call.collective), call.number, origin.empty() ? "" : " of ",
                     origin);
}

std::string describe(const Call& call) {
  if (kind(call.collective) == CollectiveKind::agrees) return title(call);
  std::string details = fmt::format("{} {} elements", call.elements, c10::toString(call.type));
  if (reduces(call.collective)) {
    details = fmt::format("{} of {}", name(call.op), details);
    if (call.algorithm == Algorithm::ring) details += ", ring";
    if (call.scale != 1) details += fmt::format(", scale {}", call.scale);
  }
  if (call.tensors > 1) details += fmt::format(", tensor {} of {}", call.tensor, call.tensors);
  if (call.collective == Collective::send) {
    details += fmt::format(", to rank {}", call.root);
  } else if (call.collective == Collective::recv) {
    details += fmt::format(", from rank {}", call.root);
  } else if (call.root >= 0) {
    details += fmt::format(", root {}", call.root);
  }
  return fmt::format("{} ({})", title(call), details);
}

ErrorContext context_of(std::string_view backend, const Call& call, int rank, int size) {
  return {.component = std::string(backend),
          .operation = std::string(name(call.collective)),
          .call = static_cast<std::int64_t>(call.number),
          .caller = std::string(name(call.origin)),
          .rank = rank,
          .size = size};
}

namespace {

// The library functions that only one of the two calls came from.
std::string missing_calls(const Call& call, const Call& others_call) {
  const CallOrigin origins[] = {call.origin, others_call.origin};
  std::string functions;
  for (const CallOrigin origin : origins) {
    const bool told = origin == CallOrigin::program || is_of_step(origin);
    if (told || origins[0] == origins[1]) continue;
    functions += fmt::format("{}{}", functions.empty() ? "" : " and ", name(origin));
  }
  return functions.empty() ? "" : fmt::format(": call {} on every rank", functions);
}

}  // namespace

ErrorDetails describe_difference(const std::string& name, const Call& call,
                                 const std::string& others_name, const Call& others_call) {
  return {.cause = fmt::format("{} called {}, but {} called {}", name, describe(call), others_name,
                               describe(others_call)),
          .remedy =
              "every rank must make the same calls, with the same sizes and types, in the same "
              "order" +
              missing_calls(call, others_call)};
}

std::string describe_message_difference(const Call& own, const std::string& peers_name,
                                        const Call& peers_call) {
  return fmt::format(
      "{} sent {} {} elements, but this rank expects {} {}; send and recv must name the same size "
      "and type, in the same order",
      peers_name, peers_call.elements, c10::toString(peers_call.type), own.elements,
      c10::toString(own.type));
}

CallsDiffer::CallsDiffer(const ErrorContext& context, const Call& own, int peer,
                         const std::string& name, const Call& peers_call)
    : ErrorType([&] {
        ErrorDetails details = describe_difference("this rank", own, name, peers_call);
        details.peer = peer;
        details.contexts = {context};
        return details;
      }()),
      own_(own),
      peers_call_(peers_call) {}

}  // namespace lockstep
