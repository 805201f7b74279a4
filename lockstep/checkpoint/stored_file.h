// SPDX-License-Identifier: BSD-3-Clause
// What ranks put into the files of a checkpoint, before it has been copied.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/element_type.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Elements that this rank provides.
struct StoredPart {
  std::int64_t begin = 0;  // in index order of the stored tensor
  at::Tensor elements;     // one dimension, on any device
};

struct StoredTensor {
  std::string name;
  const ElementType* type;
  std::vector<std::int64_t> shape;
  // All ranks' parts together are the tensor.
  std::vector<StoredPart> parts = {};
};

// Every rank has the same tensors, in the same order, but parts of its own.
struct StoredFile {
  std::string name;
  std::vector<StoredTensor> tensors;
};

// A file of tensors that all ranks have: each rank provides an equal share of the bytes, except of
// those that only rank 0 provides, since ranks may have different ones.
StoredFile share_out(std::string name, const std::vector<NamedTensor>& tensors, int rank, int ranks,
                     const std::set<std::string>& of_rank_0 = {});

}  // namespace lockstep
