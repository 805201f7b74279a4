// SPDX-License-Identifier: BSD-3-Clause
// A safetensors file that the ranks of a group write together: which tensors it will have, and
// which elements of them each rank provides.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Every rank has the same tensors, in the same order, each with parts of its own. All ranks' parts
// together are the tensor.
struct FileToSave {
  std::string name;
  std::vector<TensorToSave> tensors;
};

// Describes a file of tensors that all ranks have: each of `ranks` ranks provides an equal share of
// the bytes. Rank 0 alone provides the tensors named in `only_rank_0`, since they may differ
// between ranks.
FileToSave share_out(std::string name, const std::vector<NamedTensor>& tensors, int rank, int ranks,
                     const std::set<std::string>& only_rank_0 = {});

}  // namespace lockstep
