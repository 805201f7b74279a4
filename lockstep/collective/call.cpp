// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/call.h"

#include <fmt/format.h>

namespace lockstep {

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::barrier:
      return "barrier";
    case Collective::empty:
      return "empty";
  }
  return "unknown";
}

std::string title(const Call& call) {
  return fmt::format("{} #{}", name(call.collective), call.number);
}

std::string describe(const Call& call) {
  if (call.collective == Collective::barrier) return title(call);
  std::string details = fmt::format("{} {} elements", call.elements, c10::toString(call.type));
  if (call.collective == Collective::all_reduce || call.collective == Collective::reduce_scatter) {
    details = fmt::format("{} of {}", name(call.op), details);
    if (call.scale != 1) details += fmt::format(", scale {}", call.scale);
  }
  if (call.tensors > 1) details += fmt::format(", tensor {} of {}", call.tensor, call.tensors);
  if (call.root >= 0) details += fmt::format(", root {}", call.root);
  return fmt::format("{} ({})", title(call), details);
}

}  // namespace lockstep
