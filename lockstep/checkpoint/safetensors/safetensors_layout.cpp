// SPDX-License-Identifier: BSD-3-Clause
// Divides the bytes of a file among the ranks; checks names and types, and assigns each tensor its
// place.
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/checkpoint/safetensors/safetensors_header.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Returns the elements in index order: on the tensor's device if they lie there in that order,
// otherwise on the host.
at::Tensor flat(const at::Tensor& tensor) {
  const bool in_order = tensor.is_contiguous() && !is_lazy(tensor);
  return (in_order ? tensor.detach() : in_index_order(tensor)).view(-1);
}

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

FileToSave share_out(std::string name, const std::vector<NamedTensor>& tensors, int rank, int ranks,
                     const std::set<std::string>& only_rank_0) {
  FileToSave file{.name = std::move(name), .tensors = {}};
  std::int64_t total = 0;
  for (const auto& [label, tensor] : tensors) {
    file.tensors.push_back({label, &element_type_of(tensor, label), tensor.sizes().vec()});
    if (!only_rank_0.contains(label)) total += static_cast<std::int64_t>(tensor.nbytes());
  }
  const std::int64_t share_begin = total * rank / ranks;
  const std::int64_t share_end = total * (rank + 1) / ranks;
  std::int64_t next = 0;  // the byte of the file's data at which the tensor begins
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].tensor;
    if (only_rank_0.contains(tensors[i].name)) {
      if (rank == 0 && tensor.numel() > 0) file.tensors[i].parts.push_back({0, flat(tensor)});
      continue;
    }
    const auto width = static_cast<std::int64_t>(file.tensors[i].type->bytes);
    // An element belongs to the rank that has its first byte.
    const auto element_at = [&](std::int64_t byte) {
      return std::clamp<std::int64_t>((byte - next + width - 1) / width, 0, tensor.numel());
    };
    const std::int64_t begin = element_at(share_begin);
    const std::int64_t end = element_at(share_end);
    if (begin < end) {
      file.tensors[i].parts.push_back({begin, flat(tensor).narrow(0, begin, end - begin)});
    }
    next += tensor.numel() * width;
  }
  return file;
}

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
