// SPDX-License-Identifier: BSD-3-Clause
// Compares a state dict of Python with an optimizer, and then gives the optimizer its state.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/optimizer/optimizer_fields.h"
#include "lockstep/checkpoint/optimizer/optimizer_state.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep {
namespace {

// Differences between the file and the optimizer. A hostile file may have any number of them.
class StateFaults {
 public:
  void add(const std::string& text) {
    constexpr int kMost = 100;
    if (++count_ <= kMost) text_ += "\n  " + text;
    if (count_ == kMost + 1) text_ += "\n  and more";
  }
  bool empty() const { return count_ == 0; }
  void throw_if_any(std::string_view optimizer) const {
    if (empty()) return;
    throw CheckpointError(
        fmt::format("the state does not fit this optimizer ({}):{}", optimizer, text_));
  }

 private:
  std::string text_;
  int count_ = 0;
};

bool is_dense_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta();
}

std::string text_of_value(const TorchValue& value) {
  struct Text {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool flag) const { return flag ? "True" : "False"; }
    std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::string& text) const { return in_quotes(text); }
    std::string operator()(const at::Tensor& tensor) const {
      if (!is_dense_tensor(tensor)) return "a tensor that is undefined, sparse or on meta";
      return fmt::format("a tensor of {} with the shape {}", c10::toString(tensor.scalar_type()),
                         shape_text(tensor.sizes()));
    }
    std::string operator()(const TorchValue::List& list) const {
      return fmt::format("a list of {}", list.size());
    }
    std::string operator()(const TorchValue::Tuple& tuple) const {
      return fmt::format("a tuple of {}", tuple.items.size());
    }
    std::string operator()(const TorchValue::Dict& dict) const {
      return fmt::format("a dict of {}", dict.size());
    }
  };
  return std::visit(Text(), value.data);
}

// Returns the number in a value, or in a tensor of one element: Python stores some options and all
// steps as tensors.
std::optional<double> number_in(const TorchValue& value) {
  if (const auto* number = std::get_if<double>(&value.data)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&value.data)) {
    return static_cast<double>(*number);
  }
  const auto* tensor = std::get_if<at::Tensor>(&value.data);
  if (tensor == nullptr || !is_dense_tensor(*tensor) || tensor->numel() != 1) return {};
  constexpr std::array kTypes{at::kFloat,    at::kDouble, at::kHalf,
                              at::kBFloat16, at::kInt,    at::kLong};
  if (std::ranges::find(kTypes, tensor->scalar_type()) == kTypes.end()) return {};
  return tensor->item<double>();
}

bool fits(std::optional<double> number, const NumberBounds& bounds) {
  return number && std::isfinite(*number) && *number >= bounds.least && *number < bounds.below;
}

// Takes options, or the state of a parameter, from a dict of Python.
class FieldReader {
 public:
  FieldReader(const TorchValue& dict, std::string where, std::string_view optimizer,
              StateFaults& faults)
      : dict_(dict), where_(std::move(where)), optimizer_(optimizer), faults_(faults) {}
  virtual ~FieldReader() = default;

  void fault(std::string_view text) { faults_.add(fmt::format("{}: {}", where_, text)); }

 protected:
  const TorchValue* find(std::string_view name) { return dict_.find(name); }
  const TorchValue* require(std::string_view name) {
    const TorchValue* const found = find(name);
    if (found == nullptr) fault(fmt::format("{} is missing", in_quotes(name)));
    return found;
  }
  void wrong(std::string_view name, const TorchValue& value, std::string_view expected) {
    fault(fmt::format("{} is {}, and must be {}", in_quotes(name), text_of_value(value), expected));
  }
  std::string_view optimizer() const { return optimizer_; }
  const TorchValue& dict() const { return dict_; }

 private:
  const TorchValue& dict_;
  std::string where_;
  std::string_view optimizer_;
  StateFaults& faults_;
};

class OptionsReader : public FieldReader {
 public:
  using FieldReader::FieldReader;

  void number(std::string_view name, double& target, const NumberBounds& bounds) {
    const TorchValue* const value = require(name);
    if (value == nullptr) return;
    const auto found = number_in(*value);
    if (!fits(found, bounds)) return wrong(name, *value, bounds.text);
    target = *found;
  }
  void flag(std::string_view name, bool& target) {
    const TorchValue* const value = require(name);
    if (value == nullptr) return;
    const auto* const found = std::get_if<bool>(&value->data);
    if (found == nullptr) return wrong(name, *value, "True or False");
    target = *found;
  }
  void pair(std::string_view name, std::tuple<double, double>& target, const NumberBounds& bounds) {
    const TorchValue* const value = require(name);
    if (value == nullptr) return;
    const TorchValue::List* items = std::get_if<TorchValue::List>(&value->data);
    if (const auto* tuple = std::get_if<TorchValue::Tuple>(&value->data)) items = &tuple->items;
    if (items == nullptr || items->size() != 2) return wrong(name, *value, "a pair of numbers");
    const auto first = number_in(items->front());
    const auto second = number_in(items->back());
    if (!fits(first, bounds)) wrong(name, items->front(), fmt::format("twice {}", bounds.text));
    if (!fits(second, bounds)) wrong(name, items->back(), fmt::format("twice {}", bounds.text));
    if (fits(first, bounds) && fits(second, bounds)) target = {*first, *second};
  }
  void fixed(std::string_view name, bool expected, bool matters, std::string_view remedy) {
    const TorchValue* const value = find(name);
    if (value == nullptr || !matters) return;
    const auto* const found = std::get_if<bool>(&value->data);
    if (found == nullptr) return wrong(name, *value, "True or False");
    if (*found == expected) return;
    fault(fmt::format("{} is {}, which {} of C++ does not have; {}", in_quotes(name),
                      text_of_value(*value), optimizer(), remedy));
  }
};

class ParameterStateReader : public FieldReader {
 public:
  ParameterStateReader(const TorchValue& dict, std::string where, std::string_view optimizer,
                       StateFaults& faults, const at::Tensor& parameter)
      : FieldReader(dict, std::move(where), optimizer, faults), parameter_(parameter) {}

  void steps(std::int64_t& target) {
    known_.emplace_back("step");
    const TorchValue* const value = require("step");
    if (value == nullptr) return;
    constexpr NumberBounds kSteps{0, 0x1p53, "a whole number that is not negative"};
    const auto found = number_in(*value);
    if (!fits(found, kSteps) || std::trunc(*found) != *found) {
      const bool is_tensor = found && std::holds_alternative<at::Tensor>(value->data);
      return wrong("step", is_tensor ? TorchValue{*found} : *value, kSteps.text);
    }
    target = static_cast<std::int64_t>(*found);
  }
  // `target` then refers to the tensor in the file.
  void tensor(std::string_view name, at::Tensor& target, bool required) {
    known_.push_back(name);
    const TorchValue* const value = required ? require(name) : find(name);
    if (value == nullptr) return;
    if (std::holds_alternative<std::monostate>(value->data) && !required) return;
    const auto* const found = std::get_if<at::Tensor>(&value->data);
    const bool fits_parameter =
        found != nullptr && is_dense_tensor(*found) && found->sizes() == parameter_.sizes() &&
        (found->is_floating_point() || (found->is_complex() && parameter_.is_complex()));
    if (!fits_parameter) {
      return wrong(name, *value,
                   fmt::format("a tensor of floating-point numbers with the shape {}",
                               shape_text(parameter_.sizes())));
    }
    target = *found;
    has_tensors_ = true;
  }

  bool has_tensors() const { return has_tensors_; }
  // Call it after all fields have been read.
  void check_names() {
    for (const auto& [key, value] : std::get<TorchValue::Dict>(dict().data)) {
      const auto* const name = std::get_if<std::string>(&key.data);
      if (name != nullptr && std::ranges::find(known_, *name) != known_.end()) continue;
      fault(fmt::format("{} is not a state of {}",
                        name != nullptr ? in_quotes(*name) : text_of_value(key), optimizer()));
    }
  }

 private:
  const at::Tensor& parameter_;
  std::vector<std::string_view> known_;
  bool has_tensors_ = false;
};

// Says which part of a file is the state of an optimizer; empty if none is.
std::string part_with_groups(const TorchValue& value) {
  const auto* const dict = std::get_if<TorchValue::Dict>(&value.data);
  if (dict == nullptr) return "";
  for (const auto& [key, part] : *dict) {
    const auto* const name = std::get_if<std::string>(&key.data);
    if (name == nullptr || part.find("param_groups") == nullptr) continue;
    return fmt::format("; its part {} is one: give what find() returns for it", in_quotes(*name));
  }
  return "";
}

// Copies tensors to the devices and types in which the optimizer itself would have made them.
class StateCopier {
 public:
  StateCopier(const at::Tensor& parameter, bool is_fused)
      : parameter_(parameter), type_(parameter.scalar_type()) {
    if (is_fused && optim::can_update(type_)) type_ = optim::state_type(type_);
  }
  void steps(std::int64_t) {}
  void tensor(std::string_view, at::Tensor& target, bool) {
    if (!target.defined()) return;
    target = at::empty_like(parameter_, parameter_.options().dtype(type_)).copy_(target);
  }

 private:
  const at::Tensor& parameter_;
  at::ScalarType type_;
};

// Loads the groups and states of one file into one optimizer.
template <class Fields>
class OptimizerStateLoader {
 public:
  using Options = typename Fields::Options;
  using State = typename Fields::State;

  OptimizerStateLoader(torch::optim::Optimizer& optimizer, bool is_fused)
      : optimizer_(optimizer), is_fused_(is_fused) {
    for (const auto& group : optimizer.param_groups()) {
      options_.push_back(static_cast<const Options&>(group.options()));
    }
  }

  // Changes nothing but this object.
  void prepare(const TorchValue& value) {
    check(value);
    faults_.throw_if_any(Fields::kName);
    const at::NoGradGuard no_grad;
    for (NewState& made : states_) {
      StateCopier copier(made.parameter, is_fused_);
      Fields::visit(*made.state, options_[made.group], copier);
    }
  }

  void commit() {
    optimizer_.state().clear();
    for (NewState& made : states_) {
      optimizer_.state()[libtorch::state_key(made.parameter)] = std::move(made.state);
    }
    for (std::size_t i = 0; i < options_.size(); ++i) {
      static_cast<Options&>(optimizer_.param_groups()[i].options()) = options_[i];
    }
  }

 private:
  struct Owner {
    std::size_t number;
    std::size_t group;
    at::Tensor parameter;
    bool has_state;
  };
  struct NewState {
    at::Tensor parameter;
    std::size_t group;
    std::unique_ptr<State> state;
  };

  void check(const TorchValue& value) {
    const TorchValue* const states = value.find("state");
    const TorchValue* const groups = value.find("param_groups");
    const auto* const states_dict =
        states == nullptr ? nullptr : std::get_if<TorchValue::Dict>(&states->data);
    const auto* const group_list =
        groups == nullptr ? nullptr : std::get_if<TorchValue::List>(&groups->data);
    if (states_dict == nullptr || group_list == nullptr) {
      return faults_.add(
          fmt::format("it is not an optimizer's state dict, which has a dict \"state\" and a list "
                      "\"param_groups\"{}",
                      part_with_groups(value)));
    }
    if (group_list->size() != options_.size()) {
      return faults_.add(fmt::format("it has {} parameter groups, and the optimizer has {}",
                                     group_list->size(), options_.size()));
    }
    bool numbers_fit = true;
    for (std::size_t i = 0; i < options_.size(); ++i) {
      numbers_fit = check_group((*group_list)[i], i) && numbers_fit;
    }
    // Without the numbers, it is unknown which parameter a state belongs to.
    if (numbers_fit && faults_.empty()) check_states(*states_dict);
  }

  // Returns whether the numbers of the group's parameters fit.
  bool check_group(const TorchValue& group, std::size_t index) {
    const std::string where = fmt::format("group {}", index);
    if (!std::holds_alternative<TorchValue::Dict>(group.data)) {
      faults_.add(fmt::format("{} is {}, and must be a dict", where, text_of_value(group)));
      return false;
    }
    OptionsReader reader(group, where, Fields::kName, faults_);
    Fields::visit(options_[index], reader);
    const auto& parameters = optimizer_.param_groups()[index].params();
    const TorchValue* const found = group.find("params");
    const auto* const numbers =
        found == nullptr ? nullptr : std::get_if<TorchValue::List>(&found->data);
    if (numbers == nullptr) {
      reader.fault("\"params\" is missing or no list");
      return false;
    }
    if (numbers->size() != parameters.size()) {
      reader.fault(fmt::format("it has {} parameters, and the optimizer's has {}", numbers->size(),
                               parameters.size()));
      return false;
    }
    bool fits = true;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto* const number = std::get_if<std::int64_t>(&(*numbers)[i].data);
      const Owner owner{owners_.size(), index, parameters[i], false};
      if (number != nullptr && owners_.emplace(*number, owner).second) continue;
      reader.fault(
          fmt::format("\"params\" has {} at position {}, and must have numbers that are "
                      "all different",
                      text_of_value((*numbers)[i]), i));
      fits = false;
    }
    return fits;
  }

  void check_states(const TorchValue::Dict& states) {
    for (const auto& [key, value] : states) {
      const auto* const number = std::get_if<std::int64_t>(&key.data);
      const auto owner = number == nullptr ? owners_.end() : owners_.find(*number);
      if (owner == owners_.end()) {
        faults_.add(fmt::format("\"state\" has the key {}, which is not a parameter of any group",
                                text_of_value(key)));
        continue;
      }
      owner->second.has_state = true;
      check_state(value, owner->second);
    }
    if (!Fields::kNeedsEveryState) return;
    for (const auto& [key, owner] : owners_) {
      if (!owner.has_state) faults_.add(fmt::format("parameter {} has no state", owner.number));
    }
  }

  void check_state(const TorchValue& value, Owner& owner) {
    const std::string where = fmt::format("parameter {}", owner.number);
    const auto* const dict = std::get_if<TorchValue::Dict>(&value.data);
    if (dict == nullptr) {
      return faults_.add(
          fmt::format("{}: its state is {}, and must be a dict", where, text_of_value(value)));
    }
    if (dict->empty()) {
      owner.has_state = false;
      return;
    }
    auto state = std::make_unique<State>();
    ParameterStateReader reader(value, where, Fields::kName, faults_, owner.parameter);
    Fields::visit(*state, options_[owner.group], reader);
    reader.check_names();
    if (reader.has_tensors()) states_.push_back({owner.parameter, owner.group, std::move(state)});
  }

  torch::optim::Optimizer& optimizer_;
  bool is_fused_;
  std::vector<Options> options_;
  std::map<std::int64_t, Owner> owners_;  // by the numbers in the file
  std::vector<NewState> states_;
  StateFaults faults_;
};

std::function<void()> prepare_for(torch::optim::Optimizer& optimizer, const TorchValue& state,
                                  bool is_fused) {
  std::function<void()> commit;
  with_fields_of(optimizer, [&]<class Fields>(Fields) {
    const auto loader = std::make_shared<OptimizerStateLoader<Fields>>(optimizer, is_fused);
    loader->prepare(state);
    commit = [loader] { loader->commit(); };
  });
  return commit;
}

}  // namespace

std::function<void()> detail::prepare_optimizer_state(torch::optim::Optimizer& optimizer,
                                                      const TorchValue& state) {
  optim::remove_repeats("load_optimizer_state_dict", optimizer);
  auto* const sharded = dynamic_cast<optim::ShardedOptimizer*>(&optimizer);
  if (sharded == nullptr) return prepare_for(optimizer, state, /*is_fused=*/false);
  // Shared, since a std::function can be copied.
  const auto whole =
      std::make_shared<std::unique_ptr<torch::optim::Optimizer>>(sharded->without_state());
  prepare_for(**whole, state, /*is_fused=*/true)();
  return [sharded, whole] { sharded->load_whole(std::move(*whole)); };
}

void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const TorchValue& state) {
  detail::prepare_optimizer_state(optimizer, state)();
}

}  // namespace lockstep
