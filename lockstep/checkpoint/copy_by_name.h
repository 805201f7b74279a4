// SPDX-License-Identifier: BSD-3-Clause
// Copies tensors into those of the same names.
#pragma once

#include <span>
#include <string>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// What load_state_dict() does with the tensors of a module. `owner` is for messages: "this module".
StateDifferences copy_by_name(std::span<const NamedTensor> targets,
                              std::span<const NamedTensor> tensors, bool strict,
                              const std::string& owner);

}  // namespace lockstep
