// SPDX-License-Identifier: BSD-3-Clause
// The place in the graph where backward enters a model: the outputs of its forward.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace lockstep {

// What is called when backward reaches a model, before any gradient of the model is computed from
// that output. Whoever implements it lives as long as graphs refer to it.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  // May be called several times in one backward, once for each output.
  virtual void backward_entered() = 0;
};

// A point in time, on this thread: autograd numbers its nodes as it makes them.
using NodeNumber = std::uint64_t;
NodeNumber next_node_number();

// Makes backward tell the listener when it comes to this output, which requires grad and is from
// here on to be used instead of what it was. Its values and memory stay.
//
// If the node that computed it was made by this thread and is not older than `since`, the node
// itself will tell: that costs little, but is only right for a node of this forward, since it lasts
// as long as the node. All other outputs get an identity behind them. In-place changes of either
// tensor are then seen by the other's version counter, so that a change of a tensor which backward
// needs is still an error.
//
// Each output is looked at by itself: one node for all would run those parts of the graph that lead
// to unused outputs, with undefined gradients, and custom functions turn these into zeros.
void watch_entry(at::Tensor& output, const std::shared_ptr<BackwardListener>& listener,
                 NodeNumber since);

}  // namespace lockstep
