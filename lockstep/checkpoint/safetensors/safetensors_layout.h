// SPDX-License-Identifier: BSD-3-Clause
// The tensors to write into a safetensors file: which elements each rank provides, and where each
// tensor lies in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/safetensors/safetensors_entry.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Elements of a tensor to save, as one rank provides them.
struct PartToSave {
  std::int64_t begin = 0;  // index of the first element, in the tensor's index order
  at::Tensor elements;     // one dimension, on any device
};

struct TensorToSave {
  std::string name;
  const ElementType* type;
  std::vector<std::int64_t> shape;
  // The elements that this rank provides, if several ranks write the file; they have no effect on
  // the layout.
  std::vector<PartToSave> parts = {};
};

// A safetensors file that the ranks of a group write together. Every rank has the same tensors, in
// the same order, each with parts of its own. All ranks' parts together are the tensor.
struct FileToSave {
  std::string name;
  std::vector<TensorToSave> tensors;
};

// Describes a file of tensors that all ranks have: each of `ranks` ranks provides an equal share of
// the bytes. Rank 0 alone provides the tensors named in `only_rank_0`, since they may differ
// between ranks.
FileToSave share_out(std::string name, const std::vector<NamedTensor>& tensors, int rank, int ranks,
                     const std::set<std::string>& only_rank_0 = {});

struct SafetensorsLayout {
  // Everything that precedes the data.
  std::string head;
  // The entries, one for each tensor in the same order; offsets count from the start of the data.
  std::vector<SafetensorsEntry> entries;
  // The tensors' indices in the order of their data: wide elements first, so that every tensor is
  // aligned.
  std::vector<std::size_t> order;
  std::uint64_t data_bytes = 0;
};

// UsageError for what write_safetensors() refuses.
SafetensorsLayout lay_out_safetensors(const std::vector<TensorToSave>& tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
