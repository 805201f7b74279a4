// SPDX-License-Identifier: BSD-3-Clause
// Names of the reduction operations and algorithms.
#include "lockstep/tensor/reduce_op.h"

namespace lockstep {

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

std::string_view name(Algorithm algorithm) {
  return algorithm == Algorithm::ring ? "ring" : "automatic";
}

}  // namespace lockstep
