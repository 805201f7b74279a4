// SPDX-License-Identifier: BSD-3-Clause
// The state of an optimizer in a checkpoint: tensors of a file, named as in Python's state_dict,
// and the rest as JSON.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/checkpoint/torch_file/torch_value.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

struct OptimizerToSave {
  FileToSave file;  // "state.0.exp_avg", ...
  // {"param_groups": ..., "parameter_names": ...}. Parameter 0 of the state has the first name.
  nlohmann::json description;
};

// Describes the optimizer's state as the file `file`. `module_state` is the state_dict() of the
// module that it trains. Collective if the optimizer is sharded. UsageError for a type of optimizer
// that optimizer_state_dict() does not take.
OptimizerToSave optimizer_to_save(std::string file, torch::optim::Optimizer& optimizer,
                                  std::span<const NamedTensor> module_state, ProcessGroup& group);

// Returns the names that the optimizer's parameters have in the module's state, by their position;
// an empty name for a parameter of another module.
std::vector<std::string> parameter_names(const torch::optim::Optimizer& optimizer,
                                         std::span<const NamedTensor> module_state);

// Returns the state that was saved, for load_optimizer_state_dict(). `groups` is "param_groups" of
// the description. CheckpointError for tensors with other names.
TorchValue saved_optimizer_state(const std::vector<NamedTensor>& tensors,
                                 const nlohmann::json& groups);

}  // namespace lockstep
