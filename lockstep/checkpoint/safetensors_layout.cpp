// SPDX-License-Identifier: BSD-3-Clause
// Checks names and types, and assigns each tensor its place.
#include "lockstep/checkpoint/safetensors_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::uint64_t bytes_of_item(const SafetensorsItem& item) {
  std::uint64_t bytes = item.type->bytes;
  for (const std::int64_t size : item.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

void check_items(const std::vector<SafetensorsItem>& items) {
  if (items.size() > kMostStoredTensors) {
    throw UsageError(fmt::format("{} tensors are too many for one file, which has at most {}",
                                 items.size(), kMostStoredTensors));
  }
  std::set<std::string_view> names;
  for (const auto& [name, type, shape] : items) {
    if (name == kSafetensorsMetadata || name.size() > kMostNameBytes) {
      throw UsageError(
          fmt::format("a tensor in a safetensors file cannot have the name {}", in_quotes(name)));
    }
    if (!names.insert(name).second) {
      throw UsageError(fmt::format("two tensors have the name {}", in_quotes(name)));
    }
    if (type->safetensors.empty()) {
      throw UsageError(
          fmt::format("the tensor {} is of type {}, which safetensors lacks; save "
                      "torch::view_as_real(tensor), or convert it with tensor.to(type)",
                      in_quotes(name), type->dtype));
    }
  }
}

}  // namespace

SafetensorsLayout lay_out_safetensors(const std::vector<SafetensorsItem>& items,
                                      const std::map<std::string, std::string>& metadata) {
  check_items(items);
  SafetensorsLayout layout;
  for (const auto& [name, type, shape] : items) {
    layout.entries.push_back({name, std::string(type->safetensors), shape});
  }
  layout.order.resize(items.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::ranges::stable_sort(layout.order, std::greater{},
                           [&](std::size_t i) { return items[i].type->bytes; });
  for (const std::size_t i : layout.order) {
    layout.entries[i].begin = layout.data_bytes;
    layout.data_bytes += bytes_of_item(items[i]);
    layout.entries[i].end = layout.data_bytes;
  }
  const std::string header = safetensors_header_text(layout.entries, metadata);
  const std::uint64_t length = header.size();
  layout.head.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  layout.head += header;
  return layout;
}

}  // namespace lockstep
