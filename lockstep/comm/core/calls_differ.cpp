// SPDX-License-Identifier: BSD-3-Clause
// Writes the message about two ranks that made different calls.
#include "lockstep/comm/core/calls_differ.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

// Which functions of the library all ranks must call, if only one of the two calls is of them.
std::string remedy(const Call& call, const Call& others_call) {
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

std::string describe_difference(const std::string& name, const Call& call,
                                const std::string& others_name, const Call& others_call) {
  return fmt::format(
      "{} called {}, but {} called {}; every rank must make the same calls, with the same sizes "
      "and types, in the same order{}",
      name, describe(call), others_name, describe(others_call), remedy(call, others_call));
}

std::string describe_message_difference(const Call& own, const std::string& peers_name,
                                        const Call& peers_call) {
  return fmt::format(
      "{} sent {} {} elements, but this rank expects {} {}; send and recv must name the same size "
      "and type, in the same order",
      peers_name, peers_call.elements, c10::toString(peers_call.type), own.elements,
      c10::toString(own.type));
}

CallsDiffer::CallsDiffer(const std::string& where, const Call& own, int peer,
                         const std::string& name, const Call& peers_call)
    : UsageError(where + describe_difference("this rank", own, name, peers_call)),
      own_(own),
      peer_(peer),
      peers_call_(peers_call) {}

}  // namespace lockstep
