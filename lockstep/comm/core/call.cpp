// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/core/call.h"

#include <fmt/format.h>

namespace lockstep {

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::send:
      return "send";
    case Collective::recv:
      return "recv";
    case Collective::barrier:
      return "barrier";
    case Collective::empty:
      return "empty";
    case Collective::split:
      return "split";
  }
  return "unknown";
}

std::string_view name(Algorithm algorithm) {
  return algorithm == Algorithm::ring ? "ring" : "automatic";
}

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

bool is_message(Collective collective) {
  return collective == Collective::send || collective == Collective::recv;
}

std::string title(const Call& call) {
  return fmt::format("{} #{}", name(call.collective), call.number);
}

std::string describe(const Call& call) {
  const bool has_elements = call.collective != Collective::barrier &&
                            call.collective != Collective::split &&
                            call.collective != Collective::all_to_all;
  if (!has_elements) return title(call);
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

}  // namespace lockstep
