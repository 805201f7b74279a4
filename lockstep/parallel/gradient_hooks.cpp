// SPDX-License-Identifier: BSD-3-Clause
// Adds and removes the hooks on gradient accumulators.
#include "lockstep/parallel/gradient_hooks.h"

#include <algorithm>

#include <torch/csrc/autograd/function_hook.h>

namespace lockstep {
namespace {

using torch::autograd::variable_list;

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
