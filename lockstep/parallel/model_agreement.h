// SPDX-License-Identifier: BSD-3-Clause
// Makes sure that all ranks wrap the same model, before a difference between them turns into
// garbage or a hang.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A parameter or buffer and the name under which messages speak of it.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// One line a tensor, such as "parameter fc.weight: Float [10, 784]". Tensors that live on different
// devices of one rank are told apart by number, since cuda:0 here may be cuda:1 there.
std::vector<std::string> describe(std::string_view kind, std::span<const NamedTensor> tensors);

// A collective call. Every rank throws the same UsageError if the ranks' lines differ: it names the
// first line that does, on which rank, and both descriptions. Where they agree, as they nearly
// always do, only a hash is exchanged.
void check_agreement(ProcessGroup& group, std::string_view who,
                     const std::vector<std::string>& lines);

}  // namespace lockstep
