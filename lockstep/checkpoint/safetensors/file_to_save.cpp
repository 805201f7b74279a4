// SPDX-License-Identifier: BSD-3-Clause
// Divides the bytes of a file among the ranks.
#include "lockstep/checkpoint/safetensors/file_to_save.h"

#include <algorithm>
#include <utility>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Returns the elements in index order: on the tensor's device if they lie there in that order,
// otherwise on the host.
at::Tensor flat(const at::Tensor& tensor) {
  const bool in_order = tensor.is_contiguous() && !is_lazy(tensor);
  return (in_order ? tensor.detach() : in_index_order(tensor)).view(-1);
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

}  // namespace lockstep
