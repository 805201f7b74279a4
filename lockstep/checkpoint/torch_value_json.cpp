// SPDX-License-Identifier: BSD-3-Clause
// Visits each kind of value.
#include "lockstep/checkpoint/torch_value_json.h"

#include <string>
#include <type_traits>
#include <variant>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

json list_json(const TorchValue::List& items) {
  json list = json::array();
  for (const TorchValue& item : items) list.push_back(to_json(item));
  return list;
}

std::string key_text(const TorchValue& key) {
  const auto* const text = std::get_if<std::string>(&key.data);
  return text != nullptr ? *text : std::to_string(std::get<std::int64_t>(key.data));
}

}  // namespace

json to_json(const TorchValue& value) {
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
          for (const auto& [key, item] : data) object[key_text(key)] = to_json(item);
          return object;
        } else {
          return data;
        }
      },
      value.data);
}

TorchValue torch_value(const json& json) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_integer()) return {json.get<std::int64_t>()};
  if (json.is_number()) return {json.get<double>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_array()) {
    TorchValue::List list;
    for (const auto& item : json) list.push_back(torch_value(item));
    return {std::move(list)};
  }
  if (json.is_object()) {
    TorchValue::Dict dict;
    for (const auto& [key, item] : json.items())
      dict.emplace_back(TorchValue{key}, torch_value(item));
    return {std::move(dict)};
  }
  return {};
}

}  // namespace lockstep
