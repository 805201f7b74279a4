// SPDX-License-Identifier: BSD-3-Clause
// Each collective is one node of the autograd graph, whose backward is another collective.
#include "lockstep/parallel/functional.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep::functional {
namespace {

using torch::autograd::variable_list;
using Group = std::shared_ptr<ProcessGroup>;
// Computes the gradient of the input from the gradients of the outputs.
using Backward = std::function<at::Tensor(const variable_list&)>;

class CollectiveNode : public torch::autograd::Node {
 public:
  explicit CollectiveNode(Backward backward) : backward_(std::move(backward)) {}

  variable_list apply(variable_list&& gradients) override {
    // The other ranks may use an output that this rank does not.
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    }
    return {backward_(gradients)};
  }
  std::string name() const override { return "LockstepCollective"; }

 private:
  Backward backward_;
};

bool needs_history(const at::Tensor& input) {
  return at::GradMode::is_enabled() && input.requires_grad();
}

void set_history(std::vector<at::Tensor>& outputs, const at::Tensor& input, Backward backward) {
  const libtorch::NodePointer node = libtorch::make_node<CollectiveNode>(std::move(backward));
  node->add_next_edge(torch::autograd::impl::gradient_edge(input));
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

void require_defined(const at::Tensor& tensor, const char* function, const ProcessGroup& group) {
  if (tensor.defined()) return;
  throw UsageError(group.context("functional", function), "the tensor is undefined");
}

// The backward of a mean is a scaled sum, with the same bits. A reducer's calls are means, so a
// rank that pairs the two gets an error.
at::Tensor reduced(const at::Tensor& tensor, const Group& group, const AllReduceOptions& options) {
  const CallScope scope(CallOrigin::functional);
  std::vector<at::Tensor> result{tensor.detach().clone()};
  group->all_reduce(result, options).wait();
  if (needs_history(tensor)) {
    const double scale = scale_over(group->size(), options.op, options.scale);
    set_history(result, tensor, [group, scale](const variable_list& gradients) {
      return reduced(gradients.front(), group, {.scale = scale});
    });
  }
  return result.front();
}

at::Tensor scattered_sum(const variable_list& gradients, const Group& group) {
  const CallScope scope(CallOrigin::functional);
  const auto rank = static_cast<std::size_t>(group->rank());
  // With create_graph, this step needs a history too. It is rare, and may cost more.
  if (at::GradMode::is_enabled()) return reduced(at::stack(gradients), group, {})[group->rank()];
  at::Tensor own = at::empty_like(gradients[rank], at::MemoryFormat::Contiguous);
  group->reduce_scatter(own, gradients).wait();
  return own;
}

}  // namespace

std::vector<at::Tensor> all_gather(const at::Tensor& tensor, GroupArgument argument) {
  const CallScope scope(CallOrigin::functional);
  const Group group = argument.get().shared_from_this();
  require_defined(tensor, "all_gather", *group);
  std::vector<at::Tensor> outputs;
  for (int rank = 0; rank < group->size(); ++rank) {
    outputs.push_back(at::empty(tensor.sizes(), tensor.options()));
  }
  group->all_gather(outputs, tensor.detach()).wait();
  if (needs_history(tensor)) {
    set_history(outputs, tensor, [group](const variable_list& gradients) {
      return scattered_sum(gradients, group);
    });
  }
  return outputs;
}

at::Tensor all_reduce(const at::Tensor& tensor, GroupArgument argument, ReduceOp op) {
  const Group group = argument.get().shared_from_this();
  require_defined(tensor, "all_reduce", *group);
  if (needs_history(tensor) && op != ReduceOp::sum && op != ReduceOp::mean) {
    throw UsageError(
        group->context("functional", "all_reduce"),
        fmt::format("gradients pass through a sum or a mean, not through {}", name(op)),
        "choose one of these, or pass tensor.detach()");
  }
  return reduced(tensor, group, {.op = op});
}

std::vector<at::Tensor> grad(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs, GroupArgument argument,
                             const GradOptions& options) {
  const Group group = argument.get().shared_from_this();
  std::vector<at::Tensor> gradients =
      torch::autograd::grad(outputs, inputs, options.grad_outputs, options.retain_graph,
                            options.create_graph, options.allow_unused);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
  }
  if (options.create_graph) {
    for (at::Tensor& gradient : gradients) {
      gradient = reduced(gradient, group, {.op = ReduceOp::mean});
    }
    return gradients;
  }
  // Autograd may return one tensor several times, or an expanded one.
  for (at::Tensor& gradient : gradients) {
    gradient = gradient.clone(at::MemoryFormat::Contiguous);
  }
  group->all_reduce(gradients, {.op = ReduceOp::mean}).wait();
  return gradients;
}

}  // namespace lockstep::functional
