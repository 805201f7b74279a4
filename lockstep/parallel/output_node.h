// SPDX-License-Identifier: BSD-3-Clause
// The place in the graph where backward enters a model: an identity on one of forward's outputs.
#pragma once

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

// The same values and memory as the output, which requires grad, behind a node that tells the
// listener. In-place changes of either are seen by the other's version counter, so that a change of
// a tensor which backward needs is still an error.
//
// Each output has a node of its own: one node for all would run those parts of the graph that lead
// to unused outputs, with undefined gradients, and custom functions turn these into zeros.
at::Tensor with_output_node(const at::Tensor& output, std::shared_ptr<BackwardListener> listener);

}  // namespace lockstep
