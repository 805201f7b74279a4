// SPDX-License-Identifier: BSD-3-Clause
// Writes the options and the state of an optimizer with Python's names.
#include "lockstep/checkpoint/optimizer/optimizer_state.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "lockstep/checkpoint/optimizer/optimizer_fields.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep {
namespace {

// Collects the options of a group, or the state of a parameter.
class FieldWriter {
 public:
  void number(std::string_view name, double value, const NumberBounds&) { add(name, {value}); }
  void flag(std::string_view name, bool value) { add(name, {value}); }
  void pair(std::string_view name, const std::tuple<double, double>& value, const NumberBounds&) {
    add(name, {TorchValue::Tuple{{{std::get<0>(value)}, {std::get<1>(value)}}}});
  }
  void fixed(std::string_view name, bool value, bool, std::string_view) { flag(name, value); }
  void fault(std::string_view) {}

  void steps(std::int64_t value) {
    // Python counts in a float, which cannot represent every larger number.
    constexpr std::int64_t kMostOfFloat = 1 << 24;
    const auto type = value <= kMostOfFloat ? at::kFloat : at::kDouble;
    add("step", {at::scalar_tensor(value, at::TensorOptions(type))});
  }
  void tensor(std::string_view name, const at::Tensor& value, bool) {
    if (!value.defined()) return;
    add(name, {value.detach()});
    has_tensors_ = true;
  }

  bool has_tensors() const { return has_tensors_; }
  void add(std::string_view name, TorchValue value) {
    fields_.emplace_back(TorchValue{std::string(name)}, std::move(value));
  }
  TorchValue take() { return {std::move(fields_)}; }

 private:
  TorchValue::Dict fields_;
  bool has_tensors_ = false;
};

template <class Fields>
TorchValue state_and_groups(const torch::optim::Optimizer& optimizer) {
  using Options = typename Fields::Options;
  using State = typename Fields::State;
  TorchValue::Dict states;
  TorchValue::List groups;
  std::int64_t number = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    auto options = static_cast<const Options&>(group.options());
    TorchValue::List numbers;
    for (const at::Tensor& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const auto found = optimizer.state().find(libtorch::state_key(parameter));
      if (found != optimizer.state().end()) {
        auto state = static_cast<const State&>(*found->second);
        FieldWriter writer;
        Fields::visit(state, options, writer);
        if (writer.has_tensors()) states.emplace_back(TorchValue{number}, writer.take());
      }
      numbers.push_back({number++});
    }
    FieldWriter writer;
    Fields::visit(options, writer);
    writer.add("params", {std::move(numbers)});
    groups.push_back(writer.take());
  }
  TorchValue::Dict result;
  result.emplace_back(TorchValue{std::string("state")}, TorchValue{std::move(states)});
  result.emplace_back(TorchValue{std::string("param_groups")}, TorchValue{std::move(groups)});
  return {std::move(result)};
}

}  // namespace

TorchValue optimizer_state_dict(const torch::optim::Optimizer& optimizer) {
  const auto* const sharded = dynamic_cast<const optim::ShardedOptimizer*>(&optimizer);
  const torch::optim::Optimizer& whole = sharded ? sharded->with_whole_state() : optimizer;
  if (optim::has_repeats(whole)) {
    static std::atomic_flag warned;
    libtorch::warn_once(
        warned, "optimizer_state_dict",
        "the optimizer lists a parameter more than once, so that each step() updates it more than "
        "once. Make the optimizer from lockstep::distinct_parameters(*net), which lists tied "
        "weights once, as Python's parameters() does");
  }
  TorchValue result;
  with_fields_of(whole, [&]<class Fields>(Fields) { result = state_and_groups<Fields>(whole); });
  return result;
}

}  // namespace lockstep
