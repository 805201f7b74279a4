// SPDX-License-Identifier: BSD-3-Clause
// Makes sure that all ranks have the same model or optimizer, before a difference causes garbage or
// a hang.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// One line per tensor, such as "parameter fc.weight: Float [10, 784]". Tensors on different devices
// of one rank are distinguished by ordinal, since cuda:0 here may be cuda:1 there.
std::vector<std::string> describe(std::string_view kind, std::span<const NamedTensor> tensors);

// Collective. Every rank throws the same UsageError if the ranks' lines, which describe a `what`,
// differ; it names the first such line, the rank, and both descriptions. In the usual case of
// agreement only a hash is exchanged.
void check_agreement(ProcessGroup& group, std::string_view who,
                     const std::vector<std::string>& lines, std::string_view what = "model");

}  // namespace lockstep
