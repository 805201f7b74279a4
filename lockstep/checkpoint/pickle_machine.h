// SPDX-License-Identifier: BSD-3-Clause
// Reads the pickles of torch.save. Calls nothing: it knows the few names that build tensors and
// dicts, and refuses every other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/element_type.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep {

constexpr std::uint64_t kMostPickleBytes = 32 << 20;

// A tensor's memory as the pickle names it.
struct PickledStorage {
  std::string_view key;     // of the entry in the archive; in the pickle
  const ElementType* type;  // null if the pickle counts bytes
  std::uint64_t count = 0;  // of elements or bytes
};

// The tensor of one dimension that is this storage, with elements of this type.
using StorageReader = std::function<at::Tensor(const PickledStorage&, const ElementType&)>;

// The value in the pickle. `file` is for messages. CheckpointError as read_torch_file says.
TorchValue read_pickle(std::string_view pickle, const StorageReader& storages,
                       const std::string& file);

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

}  // namespace pickle
}  // namespace lockstep
