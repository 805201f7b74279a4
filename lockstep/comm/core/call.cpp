// SPDX-License-Identifier: BSD-3-Clause
// Describes calls for messages.
#include "lockstep/comm/core/call.h"

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

std::string where_in(std::string_view backend, std::string_view operation, int rank, int size) {
  return fmt::format("[{}] {}, rank {} of {}: ", backend, operation, rank, size);
}

}  // namespace lockstep
