// SPDX-License-Identifier: BSD-3-Clause
// The arguments of a backend's calls: one struct for all collectives and messages. The sizes that
// ranks send and expect in an all_to_all, and whether they match.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/tensor/piece.h"

namespace lockstep {

// The tensors of each call:
//
//   call                           outputs                         inputs
//   all_reduce, reduce, broadcast  a list, reduced or sent in      none
//                                  place; a reduce writes only
//                                  root's tensors
//   all_gather, gather             one per rank (gather: on root)  one
//   scatter, reduce_scatter        one                             one per rank (scatter: on root)
//   all_to_all                     one per rank                    one per rank
//   send                           none                            one
//   recv                           one                             none
//
// A call without tensors moves no data. It completes when every rank has made it, and ranks compare
// it like any other call. Barriers and the announcement of a ring are such calls.
struct CollectiveArgs {
  // The call that ranks compare. The backend fills in number, tensor and tensors, and for a list of
  // tensors also type and elements.
  Call call;
  // The caller owns both lists, for the duration of start(); the backend keeps what it needs.
  at::TensorList outputs = {};
  at::TensorList inputs = {};
  // For an all_reduce of one flat tensor: parts of this rank's own_share() that lie in other
  // buffers in host memory, in ascending order.
  std::span<const Piece> pieces = {};
  // For an all_reduce of one tensor: the type to which its elements are rounded on their way
  // between hosts; Undefined if they are not. Ranks that round compare the call as one of this
  // type.
  at::ScalarType wire_type = at::ScalarType::Undefined;
  // For send and recv.
  Tag tag = Tag::user;
  // The call of a hierarchical group that this one is part of. Ranks compare that call instead.
  const Call* part_of = nullptr;

  bool moves_nothing() const { return outputs.empty() && inputs.empty(); }
  // The call for tensor `index` of a list of outputs.
  Call call_of_output(std::size_t index) const {
    Call own = call;
    own.type = outputs[index].scalar_type();
    own.elements = outputs[index].numel();
    own.tensor = static_cast<std::int32_t>(index);
    own.tensors = static_cast<std::int32_t>(outputs.size());
    return own;
  }
};

// For an all_to_all: what this rank sends to rank 0, rank 1 and so on, then what it expects from
// each of them. Each number encodes a count of elements and their type.
std::vector<std::int64_t> exchange_sizes(at::TensorList outputs, at::TensorList inputs);

// sizes[r] are the exchange_sizes() of rank r. Describes, for a message, a pair of ranks whose
// sizes do not match; "" if all match.
std::string exchange_fault(std::span<const std::int64_t* const> sizes);

}  // namespace lockstep
