// SPDX-License-Identifier: BSD-3-Clause
// The values of a pickle while the machine builds them, and what they stand for: the tensors that
// its calls make, and the tree that a reader of the file gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/checkpoint/torch_file/torch_value.h"

namespace lockstep {

// A tensor's memory as the pickle names it.
struct PickledStorage {
  std::string_view key;     // the name of its entry in the archive; points into the pickle
  const ElementType* type;  // null if the pickle counts bytes
  std::uint64_t count = 0;  // elements, or bytes
};

// Returns this storage as a tensor of one dimension with elements of this type.
using StorageReader = std::function<at::Tensor(const PickledStorage&, const ElementType&)>;

namespace pickle {

struct List;
struct Dict;

// A function or class by its name, which is never looked up.
struct Global {
  std::string_view module;
  std::string_view name;
};

using Tuple = std::vector<struct Item>;
// A value under construction. Containers and strings belong to the machine, since the pickle may
// refer to them again and again, or make cycles.
struct Item {
  std::variant<std::monostate, bool, std::int64_t, double, std::string_view, at::Tensor, Global,
               const PickledStorage*, const Tuple*, List*, Dict*>
      data;
};

struct List {
  std::vector<Item> items;
};

struct Dict {
  std::vector<std::pair<Item, Item>> items;
  bool ordered = false;
};

// Whether a pickle may refer to this name, or use it as the type of a storage.
bool is_known(const Global& name);
bool is_storage(const Global& name);

// The arguments of a known name do not describe a tensor.
class MalformedCall : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns what a call of torch._utils._rebuild_tensor_v2, _rebuild_tensor_v3 or _rebuild_parameter
// returns in Python. MalformedCall if the arguments are of the wrong kind, if the tensor does not
// lie within its storage, or if the name is another.
at::Tensor tensor_of_call(const Global& name, const Tuple& arguments,
                          const StorageReader& storages);

// Copies the values into a tree, in which nothing is shared. Otherwise a pickle of a few bytes
// could repeat a list of lists of lists a billion times.
//
// CheckpointError if the tree would take much more memory than the pickle, if it is too deep, which
// a list that contains itself is, or if a dict has a key twice.
TorchValue tree_of(const Item& root, std::size_t pickle_bytes, const std::string& file);

}  // namespace pickle
}  // namespace lockstep
