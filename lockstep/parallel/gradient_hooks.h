// SPDX-License-Identifier: BSD-3-Clause
// Reports when a parameter's gradient is about to be accumulated, and when it has been.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "lockstep/libtorch_compat.h"

namespace lockstep {

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

}  // namespace lockstep
