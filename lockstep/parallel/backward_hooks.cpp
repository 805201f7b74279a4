// SPDX-License-Identifier: BSD-3-Clause
// Hooks the nodes of outputs and the accumulators of gradients; an output without a node of its own
// gets an identity behind it.
#include "lockstep/parallel/backward_hooks.h"

#include <algorithm>

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

class BeforeAccumulation : public torch::autograd::FunctionPreHook {
 public:
  BeforeAccumulation(int number, GradientListener& listener)
      : number_(number), listener_(listener) {}

  variable_list operator()(const variable_list& gradients) override {
    listener_.gradient_coming(number_, gradients.front());
    return gradients;
  }
  GradientListener& listener() const { return listener_; }

 private:
  int number_;
  GradientListener& listener_;
};

class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulation(int number, GradientListener& listener)
      : number_(number), listener_(listener) {}

  variable_list operator()(const variable_list& outputs, const variable_list& gradients) override {
    listener_.gradient_accumulated(number_, gradients.front().defined());
    return outputs;
  }

 private:
  int number_;
  GradientListener& listener_;
};

template <class Hook>
void erase(std::vector<std::unique_ptr<Hook>>& hooks, std::uintptr_t key) {
  hooks.erase(std::remove_if(hooks.begin(), hooks.end(),
                             [key](const auto& hook) {
                               return reinterpret_cast<std::uintptr_t>(hook.get()) == key;
                             }),
              hooks.end());
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

GradientHooks::GradientHooks(const at::Tensor& parameter, int number, GradientListener& listener)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {
  auto before = std::make_unique<BeforeAccumulation>(number, listener);
  auto after = std::make_unique<AfterAccumulation>(number, listener);
  before_ = reinterpret_cast<std::uintptr_t>(before.get());
  after_ = reinterpret_cast<std::uintptr_t>(after.get());
  accumulator_->add_pre_hook(std::move(before));
  accumulator_->add_post_hook(std::move(after));
}

// The other one's destructor removes these hooks.
GradientHooks& GradientHooks::operator=(GradientHooks&& other) noexcept {
  std::swap(accumulator_, other.accumulator_);
  std::swap(before_, other.before_);
  std::swap(after_, other.after_);
  return *this;
}

bool GradientHooks::is_reduced_elsewhere(const GradientListener& listener) const {
  return std::any_of(
      accumulator_->pre_hooks().begin(), accumulator_->pre_hooks().end(), [&](const auto& hook) {
        const auto* const before = dynamic_cast<const BeforeAccumulation*>(hook.get());
        return before && &before->listener() != &listener && before->listener().is_reducing();
      });
}

GradientHooks::~GradientHooks() {
  if (!accumulator_) return;  // moved from
  erase(accumulator_->pre_hooks(), before_);
  erase(accumulator_->post_hooks(), after_);
}

}  // namespace lockstep
