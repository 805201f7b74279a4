// SPDX-License-Identifier: BSD-3-Clause
// Notifies by a hook on the output's own node, or by an identity node behind the output.
#include "lockstep/parallel/backward_entry.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

using torch::autograd::variable_list;

class EntryHook : public torch::autograd::FunctionPreHook {
 public:
  explicit EntryHook(std::shared_ptr<BackwardListener> listener) : listener_(std::move(listener)) {}

  variable_list operator()(const variable_list& gradients) override {
    listener_->backward_entered();
    return gradients;
  }

 private:
  std::shared_ptr<BackwardListener> listener_;
};

class EntryNode : public torch::autograd::Node {
 public:
  explicit EntryNode(std::shared_ptr<BackwardListener> listener) : listener_(std::move(listener)) {}

  variable_list apply(variable_list&& gradients) override {
    listener_->backward_entered();
    return std::move(gradients);
  }
  std::string name() const override { return "LockstepOutput"; }

 private:
  std::shared_ptr<BackwardListener> listener_;
};

at::Tensor with_entry_node(const at::Tensor& output,
                           const std::shared_ptr<BackwardListener>& listener) {
  // What alias() does below autograd, but with a shared version counter.
  at::Tensor result(output.unsafeGetTensorImpl()->shallow_copy_and_detach(
      torch::autograd::impl::version_counter(output), /*allow_tensor_metadata_change=*/true));
  const libtorch::NodePointer node = libtorch::make_node<EntryNode>(listener);
  node->add_next_edge(torch::autograd::impl::gradient_edge(output));
  torch::autograd::set_history(result, node);
  return result;
}

// Each thread numbers its own nodes.
bool made_here(const torch::autograd::Node& node, NodeNumber since) {
  return node.thread_id() == at::RecordFunction::currentThreadId() && node.sequence_nr() >= since;
}

}  // namespace

NodeNumber next_node_number() {
  return at::sequence_number::peek();
}

void watch_entry(at::Tensor& output, const std::shared_ptr<BackwardListener>& listener,
                 NodeNumber since) {
  // An in-place change gives a view another node, from which nothing leads to the first one.
  const bool lasting_node = !output.is_view() && output.grad_fn();
  if (lasting_node && made_here(*output.grad_fn(), since)) {
    output.grad_fn()->add_pre_hook(std::make_unique<EntryHook>(listener));
  } else {
    output = with_entry_node(output, listener);
  }
}

}  // namespace lockstep
