// SPDX-License-Identifier: BSD-3-Clause
// Checks names and types, and assigns each tensor its place.
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/checkpoint/safetensors/safetensors_header.h"
#include "lockstep/checkpoint/tensor_file/in_quotes.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::uint64_t data_bytes_of(const TensorToSave& tensor) {
  std::uint64_t bytes = tensor.type->bytes;
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

void check_tensors_to_save(const std::vector<TensorToSave>& tensors) {
  if (tensors.size() > kMostStoredTensors) {
    throw UsageError(fmt::format("{} tensors are too many for one file, which has at most {}",
                                 tensors.size(), kMostStoredTensors));
  }
  std::set<std::string_view> names;
  for (const auto& [name, type, shape, parts] : tensors) {
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

SafetensorsLayout lay_out_safetensors(const std::vector<TensorToSave>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  check_tensors_to_save(tensors);
  SafetensorsLayout layout;
  for (const auto& [name, type, shape, parts] : tensors) {
    layout.entries.push_back({name, std::string(type->safetensors), shape});
  }
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::ranges::stable_sort(layout.order, std::greater{},
                           [&](std::size_t i) { return tensors[i].type->bytes; });
  for (const std::size_t i : layout.order) {
    layout.entries[i].begin = layout.data_bytes;
    layout.data_bytes += data_bytes_of(tensors[i]);
    layout.entries[i].end = layout.data_bytes;
  }
  const std::string header = safetensors_header_text(layout.entries, metadata);
  const std::uint64_t length = header.size();
  layout.head.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  layout.head += header;
  return layout;
}

}  // namespace lockstep
