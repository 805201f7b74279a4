// SPDX-License-Identifier: BSD-3-Clause
// Copies with a budget of bytes.
#include "lockstep/checkpoint/pickle_tree.h"

#include <set>

#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/core/error.h"

namespace lockstep::pickle {
namespace {

class TreeBuilder {
 public:
  TreeBuilder(std::size_t pickle_bytes, const std::string& file)
      : budget_(pickle_bytes * 64 + 4096), file_(file) {}

  TorchValue build(const Item& item, int depth) {
    constexpr int kMostDepth = 100;
    if (depth > kMostDepth) fail("its values are nested more than 100 deep");
    spend(sizeof(TorchValue));
    return std::visit([&](const auto& value) { return convert(value, depth); }, item.data);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}", file_, what));
  }
  void spend(std::size_t bytes) {
    if (bytes > budget_) fail("its pickle repeats values until they are many times its own size");
    budget_ -= bytes;
  }

  TorchValue convert(std::monostate, int) { return {}; }
  TorchValue convert(bool value, int) { return {value}; }
  TorchValue convert(std::int64_t value, int) { return {value}; }
  TorchValue convert(double value, int) { return {value}; }
  TorchValue convert(std::string_view value, int) {
    spend(value.size());
    return {std::string(value)};
  }
  TorchValue convert(const at::Tensor& value, int) { return {value}; }
  TorchValue convert(const Global& value, int) {
    fail(fmt::format("the value {} is neither a tensor nor a plain value",
                     in_quotes(fmt::format("{}.{}", value.module, value.name))));
  }
  TorchValue convert(const PickledStorage* value, int) {
    fail(fmt::format("the storage {} stands alone; save a tensor", in_quotes(value->key)));
  }
  TorchValue convert(const Tuple* value, int depth) {
    return {TorchValue::Tuple{items_of(*value, depth)}};
  }
  TorchValue convert(const List* value, int depth) { return {items_of(value->items, depth)}; }
  TorchValue convert(const Dict* value, int depth) {
    TorchValue::Dict dict;
    // Ordered: a file can choose keys that a hash table takes quadratic time for.
    std::set<std::string_view> texts;
    std::set<std::int64_t> numbers;
    for (const auto& [key, item] : value->items) {
      const auto* text = std::get_if<std::string_view>(&key.data);
      const auto* number = std::get_if<std::int64_t>(&key.data);
      if (text == nullptr && number == nullptr) {
        fail("a dict has a key that is neither a string nor an integer");
      }
      const bool is_new =
          text != nullptr ? texts.emplace(*text).second : numbers.insert(*number).second;
      if (!is_new) {
        fail(fmt::format("a dict has the key {} twice",
                         text != nullptr ? in_quotes(*text) : std::to_string(*number)));
      }
      TorchValue key_value = build(key, depth + 1);
      dict.emplace_back(std::move(key_value), build(item, depth + 1));
    }
    return {std::move(dict)};
  }

  TorchValue::List items_of(const std::vector<Item>& items, int depth) {
    TorchValue::List list;
    for (const Item& item : items) list.push_back(build(item, depth + 1));
    return list;
  }

  std::size_t budget_;
  const std::string& file_;
};

}  // namespace

TorchValue tree_of(const Item& root, std::size_t pickle_bytes, const std::string& file) {
  return TreeBuilder(pickle_bytes, file).build(root, 0);
}

}  // namespace lockstep::pickle
