// SPDX-License-Identifier: BSD-3-Clause
// What the reducer hears from autograd: that backward enters a model through the outputs of its
// forward, and that the gradient of a parameter is about to be accumulated, or has been.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>

#include "lockstep/libtorch_compat.h"

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

// Called on the thread that computes the gradient: on CPU the thread that called backward.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  // The gradient may be undefined: a part of the graph ran without contributing anything. Throwing
  // leaves .grad unchanged and ends backward.
  virtual void gradient_coming(int parameter, const at::Tensor& gradient) = 0;
  virtual void gradient_accumulated(int parameter, bool defined) = 0;
  // Whether the backward that runs now is reduced by this listener.
  virtual bool is_reducing() = 0;
};

// The hooks of one parameter, removed by the destructor. Keeps the parameter's gradient accumulator
// alive, to which autograd holds only a weak reference.
class GradientHooks {
 public:
  // The listener must outlive this object.
  GradientHooks(const at::Tensor& parameter, int number, GradientListener& listener);
  GradientHooks(GradientHooks&& other) noexcept = default;
  GradientHooks& operator=(GradientHooks&& other) noexcept;
  ~GradientHooks();

  // Whether the parameter still has the accumulator with the hooks: converting it or replacing its
  // data silently gives it another one.
  bool on(const at::Tensor& parameter) const {
    return torch::autograd::impl::try_get_grad_accumulator(parameter) == accumulator_;
  }
  // Whether neither the parameter nor a graph uses the accumulator.
  bool alone() const { return accumulator_.use_count() == 1; }
  // Whether another listener of the same parameter reduces its gradient now.
  bool is_reduced_elsewhere(const GradientListener& listener) const;
  const torch::autograd::Node* accumulator() const { return accumulator_.get(); }

 private:
  libtorch::NodePointer accumulator_;
  std::uintptr_t before_ = 0;
  std::uintptr_t after_ = 0;
};

namespace detail {

// Held by the list of final callbacks of a backward. If it is destroyed without being called,
// backward has ended with an exception.
template <class Listener>
class EndOfBackward {
 public:
  EndOfBackward(std::shared_ptr<Listener> listener, void (Listener::*ended)(),
                void (Listener::*failed)() noexcept)
      : listener_(std::move(listener)), ended_(ended), failed_(failed) {}
  EndOfBackward(const EndOfBackward&) = delete;
  EndOfBackward& operator=(const EndOfBackward&) = delete;
  ~EndOfBackward() {
    if (!called_) ((*listener_).*failed_)();
  }

  void call() {
    called_ = true;
    ((*listener_).*ended_)();
  }

 private:
  std::shared_ptr<Listener> listener_;
  void (Listener::*ended_)();
  void (Listener::*failed_)() noexcept;
  bool called_ = false;
};

}  // namespace detail

// Within a backward: calls `ended` at its end, or `failed` if it ends with an exception.
template <class Listener>
void at_end_of_backward(std::shared_ptr<Listener> listener, void (Listener::*ended)(),
                        void (Listener::*failed)() noexcept) {
  auto end = std::make_shared<detail::EndOfBackward<Listener>>(std::move(listener), ended, failed);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->call(); });
}

}  // namespace lockstep
