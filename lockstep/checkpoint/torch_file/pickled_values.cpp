// SPDX-License-Identifier: BSD-3-Clause
// Checks sizes, strides and offsets against the storage, and copies values with a budget of bytes.
#include "lockstep/checkpoint/torch_file/pickled_values.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep::pickle {
namespace {

constexpr std::string_view kTensorOfType = "_rebuild_tensor_v2";
constexpr std::string_view kTensorOfBytes = "_rebuild_tensor_v3";
constexpr std::string_view kParameter = "_rebuild_parameter";

[[noreturn]] void refuse_call(const std::string& what) {
  throw MalformedCall(what);
}

template <class Kind>
const Kind& argument(const Tuple& arguments, std::size_t index, std::string_view what) {
  const auto* found =
      index < arguments.size() ? std::get_if<Kind>(&arguments[index].data) : nullptr;
  if (found == nullptr) refuse_call(fmt::format("a tensor without {}", what));
  return *found;
}

// Refuses hooks and the like, which would have to be executed.
void require_nothing(const Tuple& arguments, std::size_t index) {
  if (index >= arguments.size()) return;
  const Item& item = arguments[index];
  const auto* dict = std::get_if<Dict*>(&item.data);
  const bool is_nothing = std::holds_alternative<std::monostate>(item.data) ||
                          (dict != nullptr && (*dict)->items.empty());
  if (!is_nothing) refuse_call("a tensor with hooks or with other attributes");
}

std::vector<std::int64_t> sizes_argument(const Tuple& arguments, std::size_t index,
                                         std::string_view what) {
  constexpr std::size_t kMostDimensions = 64;  // libtorch's own limit
  const Tuple& tuple = *argument<const Tuple*>(arguments, index, what);
  if (tuple.size() > kMostDimensions) {
    refuse_call(
        fmt::format("a tensor of {} dimensions, more than {}", tuple.size(), kMostDimensions));
  }
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < tuple.size(); ++i) {
    sizes.push_back(argument<std::int64_t>(tuple, i, what));
    if (sizes.back() < 0) refuse_call(fmt::format("a tensor with {} in {}", sizes.back(), what));
  }
  return sizes;
}

struct View {
  std::int64_t offset;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

// The view must lie in the storage, and must not have more elements than the storage. Otherwise a
// small file could hold tensors that no memory holds.
void check_view(const View& view, std::int64_t storage_elements) {
  const auto refuse = [&] {
    refuse_call(
        fmt::format("a tensor of shape {}, strides {} and offset {} in a storage of {} elements{}",
                    shape_text(view.sizes), shape_text(view.strides), view.offset, storage_elements,
                    view.offset < 0 ? "" : "; save tensor.clone() of one that expand() made"));
  };
  if (view.offset < 0 || view.offset > storage_elements) refuse();
  if (view.strides.size() != view.sizes.size()) refuse();
  std::int64_t elements = 1;
  std::int64_t last = view.offset;
  bool overflow = false;
  bool empty = false;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    std::int64_t reach = 0;
    empty = empty || view.sizes[i] == 0;
    overflow |=
        __builtin_mul_overflow(elements, std::max<std::int64_t>(view.sizes[i], 1), &elements);
    overflow |= __builtin_mul_overflow(std::max<std::int64_t>(view.sizes[i], 1) - 1,
                                       view.strides[i], &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  if (overflow) refuse();
  if (!empty && (last >= storage_elements || elements > storage_elements)) refuse();
}

at::Tensor rebuilt_tensor(const Tuple& arguments, bool of_bytes, const StorageReader& storages) {
  const PickledStorage& storage = *argument<const PickledStorage*>(arguments, 0, "a storage");
  const View view{.offset = argument<std::int64_t>(arguments, 1, "an offset"),
                  .sizes = sizes_argument(arguments, 2, "its shape"),
                  .strides = sizes_argument(arguments, 3, "its strides")};
  argument<bool>(arguments, 4, "requires_grad");
  require_nothing(arguments, 5);
  const ElementType* type = storage.type;
  if (of_bytes) {
    const Global& dtype = argument<Global>(arguments, 6, "a dtype");
    type = dtype.module == "torch" ? find_dtype(dtype.name) : nullptr;
  }
  require_nothing(arguments, of_bytes ? 7 : 6);
  if (type == nullptr || arguments.size() > (of_bytes ? 8u : 7u)) {
    refuse_call("a tensor whose type is unknown");
  }
  const std::uint64_t unit = storage.type == nullptr ? 1 : storage.type->bytes;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  if (storage.count > kMost) refuse_call(fmt::format("a storage of {} elements", storage.count));
  check_view(view, static_cast<std::int64_t>(storage.count * unit / type->bytes));
  return storages(storage, *type).as_strided(view.sizes, view.strides, view.offset);
}

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
    // Ordered: a file can choose keys for which a hash table takes quadratic time.
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

bool is_storage(const Global& name) {
  return (name.module == "torch" && find_storage_type(name.name) != nullptr) ||
         (name.module == "torch.storage" && name.name == "UntypedStorage");
}

bool is_known(const Global& name) {
  if (name.module == "torch._utils") {
    return name.name == kTensorOfType || name.name == kTensorOfBytes || name.name == kParameter;
  }
  if (name.module == "collections") return name.name == "OrderedDict";
  return is_storage(name) || (name.module == "torch" && find_dtype(name.name) != nullptr);
}

at::Tensor tensor_of_call(const Global& name, const Tuple& arguments,
                          const StorageReader& storages) {
  if (name.module != "torch._utils") {
    refuse_call(
        fmt::format("a call of {}", in_quotes(fmt::format("{}.{}", name.module, name.name))));
  }
  if (name.name == kParameter) {
    argument<bool>(arguments, 1, "requires_grad");
    require_nothing(arguments, 2);
    return argument<at::Tensor>(arguments, 0, "its data");
  }
  return rebuilt_tensor(arguments, name.name == kTensorOfBytes, storages);
}

TorchValue tree_of(const Item& root, std::size_t pickle_bytes, const std::string& file) {
  return TreeBuilder(pickle_bytes, file).build(root, 0);
}

}  // namespace lockstep::pickle
