// SPDX-License-Identifier: BSD-3-Clause
// What a process group asks of its backend: one struct for every collective and message.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/piece.h"

namespace lockstep {

// Which tensors a call has:
//
//   call                          outputs                       inputs
//   all_reduce, reduce, broadcast a list, reduced or sent where none
//                                 each tensor lies; of a reduce
//                                 only root's are written
//   all_gather, gather            one a rank (gather: on root)  one
//   scatter, reduce_scatter       one                           one a rank (scatter: on root)
//   all_to_all                    one a rank                    one a rank
//   send                          none                          one
//   recv                          one                           none
//
// A call without tensors moves nothing; it completes when every rank has made it, and ranks compare
// it as any other. A barrier is one, and so is what announces a ring.
struct CollectiveArgs {
  // What ranks compare. Its number, tensor and tensors are the backend's to fill in; so are type
  // and elements where the call has a list of tensors.
  Call call;
  // The caller's for the duration of start(); the backend keeps what it needs.
  at::TensorList outputs = {};
  at::TensorList inputs = {};
  // Of an all_reduce of one flat tensor: parts of this rank's own_share() that lie elsewhere in host
  // memory, in ascending order.
  std::span<const Piece> pieces = {};
  // Of a send or recv.
  Tag tag = Tag::user;
  // The call of a hierarchical group of which this one is a part; ranks compare that one instead.
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

}  // namespace lockstep
