// SPDX-License-Identifier: BSD-3-Clause
// Detects that backward enters a model, through the outputs of its forward.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Called when backward reaches a model, before that output contributes to any gradient of the
// model. Graphs keep the listener alive.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  // May be called several times in one backward: once for each output.
  virtual void backward_entered() = 0;
};

// A point in time on this thread: autograd numbers the nodes that it makes.
using NodeNumber = std::uint64_t;
NodeNumber next_node_number();

// Makes backward notify the listener when it reaches this output, which requires grad. Use the
// output only after this call; its values and memory stay.
//
// If this thread made the node that computed the output, and the node is not older than `since`, a
// hook on the node itself notifies. That is cheap, but correct only for a node of this forward,
// since the hook lasts as long as the node. Any other output gets an identity behind it. In-place
// changes of either tensor then increase the other's version counter, so that changing a tensor
// which backward needs is still an error.
//
// Each output is watched separately: one node for all would run the parts of the graph that lead to
// unused outputs, with undefined gradients, which custom functions turn into zeros.
void watch_entry(at::Tensor& output, const std::shared_ptr<BackwardListener>& listener,
                 NodeNumber since);

}  // namespace lockstep
