// SPDX-License-Identifier: BSD-3-Clause
// Ranks agree on which tensors a sharded state has, and each provides its part.
#include "lockstep/checkpoint/optimizer/stored_optimizer.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/optimizer/optimizer_state.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep {
namespace {

using nlohmann::json;
using optim::ShardedOptimizer;
using optim::StatePart;

constexpr const char* kSteps = "step";

json json_of(const TorchValue& value);

json list_json(const TorchValue::List& items) {
  json list = json::array();
  for (const TorchValue& item : items) list.push_back(json_of(item));
  return list;
}

std::string key_text(const TorchValue& key) {
  const auto* const text = std::get_if<std::string>(&key.data);
  return text != nullptr ? *text : std::to_string(std::get<std::int64_t>(key.data));
}

// Tuples become lists. UsageError for a tensor.
json json_of(const TorchValue& value) {
  return std::visit(
      [](const auto& data) -> json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Data, at::Tensor>) {
          throw UsageError("a tensor cannot be written as JSON");
        } else if constexpr (std::is_same_v<Data, TorchValue::List>) {
          return list_json(data);
        } else if constexpr (std::is_same_v<Data, TorchValue::Tuple>) {
          return list_json(data.items);
        } else if constexpr (std::is_same_v<Data, TorchValue::Dict>) {
          json object = json::object();
          for (const auto& [key, item] : data) object[key_text(key)] = json_of(item);
          return object;
        } else {
          return data;
        }
      },
      value.data);
}

TorchValue value_of(const json& json) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_integer()) return {json.get<std::int64_t>()};
  if (json.is_number()) return {json.get<double>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_array()) {
    TorchValue::List list;
    for (const auto& item : json) list.push_back(value_of(item));
    return {std::move(list)};
  }
  if (json.is_object()) {
    TorchValue::Dict dict;
    for (const auto& [key, item] : json.items()) dict.emplace_back(TorchValue{key}, value_of(item));
    return {std::move(dict)};
  }
  return {};
}

std::string state_name(std::size_t parameter, std::string_view tensor) {
  return fmt::format("state.{}.{}", parameter, tensor);
}

std::vector<NamedTensor> tensors_of_state(const TorchValue& state_dict) {
  std::vector<NamedTensor> tensors;
  for (const auto& [position, entries] :
       std::get<TorchValue::Dict>(state_dict.find("state")->data)) {
    const auto parameter = static_cast<std::size_t>(std::get<std::int64_t>(position.data));
    for (const auto& [name, value] : std::get<TorchValue::Dict>(entries.data)) {
      const auto* const tensor = std::get_if<at::Tensor>(&value.data);
      if (tensor == nullptr) continue;  // None
      tensors.push_back({state_name(parameter, std::get<std::string>(name.data)), *tensor});
    }
  }
  return tensors;
}

// The state of a parameter, combined from all ranks.
struct ParameterState {
  std::int64_t steps = 0;
  std::map<std::string, std::string> dtypes;  // by the tensor's name
  // The strides in whose order the parts are counted; empty for index order.
  std::vector<std::int64_t> strides;
};

bool is_in_index_order(const StatePart& part) {
  std::int64_t expected = 1;
  for (std::size_t i = part.sizes.size(); i-- > 0;) {
    if (part.sizes[i] != 1 && part.strides[i] != expected) return false;
    expected *= part.sizes[i];
  }
  return true;
}

std::map<std::size_t, ParameterState> agreed_states(const std::vector<StatePart>& own,
                                                    ProcessGroup& group) {
  json parts = json::array();
  for (const StatePart& part : own) {
    json dtypes = json::object();
    for (const auto& [name, tensor] : part.tensors) {
      dtypes[name] = element_type_of(tensor, name).dtype;
    }
    parts.push_back({{"parameter", part.parameter},
                     {"steps", part.steps},
                     {"dtypes", dtypes},
                     {"strides", is_in_index_order(part) ? json::array() : json(part.strides)}});
  }
  std::map<std::size_t, ParameterState> states;
  for (const json& of_rank : all_gather_object(parts, group)) {
    for (const json& part : of_rank) {
      ParameterState& state = states[part.at("parameter").get<std::size_t>()];
      state.steps = std::max(state.steps, part.at("steps").get<std::int64_t>());
      for (const auto& [name, dtype] : part.at("dtypes").items()) state.dtypes[name] = dtype;
      state.strides = part.at("strides").get<std::vector<std::int64_t>>();
    }
  }
  return states;
}

// Collective. Returns a tensor whose parts are not in index order, whole on every rank. This is
// rare, and may therefore cost a reduction.
at::Tensor gathered(const std::vector<PartToSave>& parts, const ElementType& type,
                    const at::Tensor& parameter, at::IntArrayRef strides, ProcessGroup& group) {
  const at::Tensor memory = at::zeros({parameter.numel()}, parameter.options().dtype(*type.type));
  for (const auto& [begin, elements] : parts) {
    memory.narrow(0, begin, elements.numel()).copy_(elements);
  }
  group.all_reduce(memory).wait();
  return memory.as_strided(parameter.sizes(), strides);
}

FileToSave sharded_file(std::string name, ShardedOptimizer& sharded,
                        const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const std::vector<StatePart> own = sharded.own_state();
  std::map<std::string, std::vector<PartToSave>> parts;
  for (const StatePart& part : own) {
    for (const auto& [tensor_name, tensor] : part.tensors) {
      parts[state_name(part.parameter, tensor_name)].push_back({part.begin, tensor});
    }
  }
  FileToSave file{.name = std::move(name), .tensors = {}};
  for (const auto& [number, state] : agreed_states(own, group)) {
    const at::Tensor& parameter = parameters.at(number);
    const bool first_rank = group.rank() == 0;
    if (state.steps > 0) {
      TensorToSave steps{
          .name = state_name(number, kSteps), .type = find_element_type(at::kFloat), .shape = {}};
      if (first_rank) {
        steps.parts = {{0, at::full({1}, static_cast<double>(state.steps), at::kFloat)}};
      }
      file.tensors.push_back(std::move(steps));
    }
    for (const auto& [tensor_name, dtype] : state.dtypes) {
      TensorToSave tensor{.name = state_name(number, tensor_name),
                          .type = find_dtype(dtype),
                          .shape = parameter.sizes().vec(),
                          .parts = parts[state_name(number, tensor_name)]};
      if (!state.strides.empty()) {
        const at::Tensor whole =
            gathered(tensor.parts, *tensor.type, parameter, state.strides, group);
        tensor.parts.clear();
        if (first_rank) tensor.parts = {{0, in_index_order(whole).view(-1)}};
      }
      file.tensors.push_back(std::move(tensor));
    }
  }
  return file;
}

// Returns 12 and "exp_avg" for "state.12.exp_avg"; CheckpointError for another kind of name.
std::pair<std::int64_t, std::string> parsed(const std::string& name) {
  constexpr std::string_view kPrefix = "state.";
  std::int64_t number = 0;
  const char* const begin = name.data() + std::min(kPrefix.size(), name.size());
  const char* const end = name.data() + name.size();
  const auto [next, error] = std::from_chars(begin, end, number);
  if (!name.starts_with(kPrefix) || error != std::errc() || number < 0 || end - next < 2 ||
      *next != '.') {
    throw CheckpointError(fmt::format(
        "{} does not name a tensor of an optimizer's state, such as \"state.0.exp_avg\"",
        in_quotes(name)));
  }
  return {number, std::string(next + 1, end)};
}

}  // namespace

std::vector<std::string> parameter_names(const torch::optim::Optimizer& optimizer,
                                         std::span<const NamedTensor> module_state) {
  std::map<const void*, std::string> by_memory;
  for (const auto& [name, tensor] : module_state) {
    if (memory_of(tensor) != nullptr) by_memory.try_emplace(memory_of(tensor), name);
  }
  std::vector<std::string> names;
  for (const at::Tensor& parameter : optim::parameters_of(optimizer)) {
    const auto found = by_memory.find(memory_of(parameter));
    names.push_back(found == by_memory.end() ? "" : found->second);
  }
  return names;
}

OptimizerToSave optimizer_to_save(std::string file, torch::optim::Optimizer& optimizer,
                                  std::span<const NamedTensor> module_state, ProcessGroup& group) {
  auto* const sharded = dynamic_cast<ShardedOptimizer*>(&optimizer);
  const bool is_sharded = sharded != nullptr && sharded->is_sharded();
  const TorchValue whole = is_sharded ? optimizer_state_dict(*sharded->without_state())
                                      : optimizer_state_dict(optimizer);
  OptimizerToSave saved;
  saved.description = {{"param_groups", json_of(*whole.find("param_groups"))},
                       {"parameter_names", parameter_names(optimizer, module_state)}};
  saved.file =
      is_sharded ? sharded_file(std::move(file), *sharded, optim::parameters_of(optimizer), group)
                 : share_out(std::move(file), tensors_of_state(whole), group.rank(), group.size());
  return saved;
}

TorchValue saved_optimizer_state(const std::vector<NamedTensor>& tensors, const json& groups) {
  std::map<std::int64_t, TorchValue::Dict> states;
  for (const auto& [name, tensor] : tensors) {
    auto [parameter, entry] = parsed(name);
    states[parameter].emplace_back(TorchValue{std::move(entry)}, TorchValue{tensor});
  }
  TorchValue::Dict state;
  for (auto& [parameter, entries] : states) {
    state.emplace_back(TorchValue{parameter}, TorchValue{std::move(entries)});
  }
  return {TorchValue::Dict{{TorchValue{std::string("state")}, TorchValue{std::move(state)}},
                           {TorchValue{std::string("param_groups")}, value_of(groups)}}};
}

}  // namespace lockstep
