// SPDX-License-Identifier: BSD-3-Clause
// The options and the state of libtorch's optimizers by their names in Python, for functions that
// read them and functions that write them.
#pragma once

#include <limits>
#include <string_view>
#include <typeinfo>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/core/error.h"

namespace lockstep {

// The range of an option: finite, from `least` to below `below`. `text` describes it.
struct NumberBounds {
  double least;
  double below;
  std::string_view text;
};

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr NumberBounds kAnyNumber{-kUnbounded, kUnbounded, "a finite number"};
constexpr NumberBounds kNotNegative{0, kUnbounded, "a finite number that is not negative"};
constexpr NumberBounds kBelowOne{0, 1, "a number from 0 to below 1"};

// Specialized for each optimizer. The visitor of options has these members:
//   number(name, double&, bounds); flag(name, bool&);
//   pair(name, std::tuple<double, double>&, bounds);
//   fixed(name, value, matters, remedy);  an option that only Python has, and C++'s fixed value
//   fault(text);                          options that exclude each other
// The visitor of a state has these; the options that visit() gets with it are valid:
//   steps(std::int64_t&); tensor(name, at::Tensor&, required);
template <class Optimizer>
struct OptimizerFields;

template <class Visitor>
void visit_maximize(Visitor& visitor) {
  visitor.fixed("maximize", false, /*matters=*/true, "negate the loss instead");
}

template <>
struct OptimizerFields<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr std::string_view kName = "SGD";
  static constexpr bool kNeedsEveryState = false;

  template <class Visitor>
  static void visit(Options& options, Visitor& visitor) {
    visitor.number("lr", options.lr(), kAnyNumber);
    visitor.number("momentum", options.momentum(), kNotNegative);
    visitor.number("dampening", options.dampening(), kAnyNumber);
    visitor.number("weight_decay", options.weight_decay(), kNotNegative);
    visitor.flag("nesterov", options.nesterov());
    if (options.nesterov() && !(options.momentum() > 0 && options.dampening() == 0)) {
      visitor.fault("\"nesterov\" needs a momentum and no dampening");
    }
    visit_maximize(visitor);
  }
  template <class Visitor>
  static void visit(State& state, const Options&, Visitor& visitor) {
    visitor.tensor("momentum_buffer", state.momentum_buffer(), /*required=*/false);
  }
};

// Adam and AdamW; Python tells them apart by `decoupled_weight_decay`.
template <class AdamOptions, class AdamState>
struct AdamFields {
  using Options = AdamOptions;
  using State = AdamState;
  static constexpr bool kNeedsEveryState = false;

  template <class Visitor>
  static void visit_common(Options& options, Visitor& visitor) {
    visitor.number("lr", options.lr(), kAnyNumber);
    visitor.pair("betas", options.betas(), kBelowOne);
    visitor.number("eps", options.eps(), kNotNegative);
    visitor.number("weight_decay", options.weight_decay(), kNotNegative);
    visitor.flag("amsgrad", options.amsgrad());
    visit_maximize(visitor);
  }
  template <class Visitor>
  static void visit(State& state, const Options& options, Visitor& visitor) {
    visitor.steps(state.step());
    visitor.tensor("exp_avg", state.exp_avg(), /*required=*/true);
    visitor.tensor("exp_avg_sq", state.exp_avg_sq(), /*required=*/true);
    visitor.tensor("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
  }
};

template <>
struct OptimizerFields<torch::optim::Adam>
    : AdamFields<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr std::string_view kName = "Adam";

  using AdamFields::visit;
  template <class Visitor>
  static void visit(Options& options, Visitor& visitor) {
    visit_common(options, visitor);
    visitor.fixed("decoupled_weight_decay", false, options.weight_decay() != 0,
                  "load it into AdamW");
  }
};

template <>
struct OptimizerFields<torch::optim::AdamW>
    : AdamFields<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr std::string_view kName = "AdamW";

  using AdamFields::visit;
  template <class Visitor>
  static void visit(Options& options, Visitor& visitor) {
    visit_common(options, visitor);
    visitor.fixed("decoupled_weight_decay", true, options.weight_decay() != 0, "load it into Adam");
  }
};

template <>
struct OptimizerFields<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr std::string_view kName = "RMSprop";
  static constexpr bool kNeedsEveryState = false;

  template <class Visitor>
  static void visit(Options& options, Visitor& visitor) {
    visitor.number("lr", options.lr(), kAnyNumber);
    visitor.number("momentum", options.momentum(), kNotNegative);
    visitor.number("alpha", options.alpha(), kNotNegative);
    visitor.number("eps", options.eps(), kNotNegative);
    visitor.flag("centered", options.centered());
    visitor.number("weight_decay", options.weight_decay(), kNotNegative);
    visit_maximize(visitor);
  }
  template <class Visitor>
  static void visit(State& state, const Options& options, Visitor& visitor) {
    visitor.steps(state.step());
    visitor.tensor("square_avg", state.square_avg(), /*required=*/true);
    visitor.tensor("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
    visitor.tensor("grad_avg", state.grad_avg(), options.centered());
  }
};

template <>
struct OptimizerFields<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr std::string_view kName = "Adagrad";
  static constexpr bool kNeedsEveryState = true;  // libtorch makes it in the constructor

  template <class Visitor>
  static void visit(Options& options, Visitor& visitor) {
    visitor.number("lr", options.lr(), kAnyNumber);
    visitor.number("lr_decay", options.lr_decay(), kNotNegative);
    visitor.number("eps", options.eps(), kNotNegative);
    visitor.number("weight_decay", options.weight_decay(), kNotNegative);
    visitor.number("initial_accumulator_value", options.initial_accumulator_value(), kNotNegative);
    visit_maximize(visitor);
  }
  template <class Visitor>
  static void visit(State& state, const Options&, Visitor& visitor) {
    visitor.steps(state.step());
    visitor.tensor("sum", state.sum(), /*required=*/true);
  }
};

// Calls function(OptimizerFields<Optimizer>()) for the type of the optimizer. UsageError for any
// other type.
template <class Function>
void with_fields_of(const torch::optim::Optimizer& optimizer, const Function& function) {
  const auto call_for = [&]<class Optimizer>(OptimizerFields<Optimizer> fields) {
    if (dynamic_cast<const Optimizer*>(&optimizer) == nullptr) return false;
    function(fields);
    return true;
  };
  const bool found = call_for(OptimizerFields<torch::optim::SGD>()) ||
                     call_for(OptimizerFields<torch::optim::Adam>()) ||
                     call_for(OptimizerFields<torch::optim::AdamW>()) ||
                     call_for(OptimizerFields<torch::optim::RMSprop>()) ||
                     call_for(OptimizerFields<torch::optim::Adagrad>());
  if (found) return;
  throw UsageError(fmt::format(
      "Lockstep does not know Python's names for the state of {}, only of SGD, Adam, AdamW, "
      "RMSprop and Adagrad; save other optimizers with torch::save",
      c10::demangle(typeid(optimizer).name())));
}

}  // namespace lockstep
