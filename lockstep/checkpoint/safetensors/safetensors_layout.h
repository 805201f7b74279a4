// SPDX-License-Identifier: BSD-3-Clause
// The tensors to write into a safetensors file, and where each of them lies in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/safetensors/safetensors_entry.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"

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

struct SafetensorsLayout {
  // Everything that precedes the data.
  std::string head;
  // One for each tensor, in the same order; offsets count from the start of the data.
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
