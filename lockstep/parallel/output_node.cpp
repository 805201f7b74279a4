// SPDX-License-Identifier: BSD-3-Clause
// An autograd node that returns what it gets.
#include "lockstep/parallel/output_node.h"

#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/libtorch_version.h"

namespace lockstep {
namespace {

class OutputNode : public torch::autograd::Node {
 public:
  explicit OutputNode(std::shared_ptr<BackwardListener> listener)
      : listener_(std::move(listener)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    listener_->backward_entered();
    return std::move(gradients);
  }
  std::string name() const override { return "LockstepOutput"; }

 private:
  std::shared_ptr<BackwardListener> listener_;
};

}  // namespace

at::Tensor with_output_node(const at::Tensor& output, std::shared_ptr<BackwardListener> listener) {
  // What alias() does below autograd, with the version counter shared.
  at::Tensor result(output.unsafeGetTensorImpl()->shallow_copy_and_detach(
      torch::autograd::impl::version_counter(output), /*allow_tensor_metadata_change=*/true));
  const libtorch::NodePointer node = libtorch::make_node<OutputNode>(std::move(listener));
  node->add_next_edge(torch::autograd::impl::gradient_edge(output));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace lockstep
