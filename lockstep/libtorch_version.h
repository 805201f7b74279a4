// SPDX-License-Identifier: BSD-3-Clause
// All that differs between the versions of libtorch that Lockstep is built with.
#pragma once

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::libtorch {

// What owns a node of the autograd graph: std::shared_ptr in 1.13, c10::intrusive_ptr in 2.13.
using NodePointer =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

template <class Pointer, class Node>
struct NodeFactory;

template <class Node>
struct NodeFactory<std::shared_ptr<torch::autograd::Node>, Node> {
  template <class... Arguments>
  static auto make(Arguments&&... arguments) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  }
};

template <class Node>
struct NodeFactory<c10::intrusive_ptr<torch::autograd::Node>, Node> {
  template <class... Arguments>
  static auto make(Arguments&&... arguments) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
};

template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  return NodeFactory<NodePointer, Node>::make(std::forward<Arguments>(arguments)...);
}

}  // namespace lockstep::libtorch
