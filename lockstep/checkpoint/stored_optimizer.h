// SPDX-License-Identifier: BSD-3-Clause
// The state of an optimizer as tensors of a file, named as in Python's state_dict, and the rest as
// JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/stored_file.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

struct StoredOptimizer {
  StoredFile file;  // "state.0.exp_avg", ...
  // {"param_groups": ..., "parameter_names": ...}: the positions in state are those of the names.
  nlohmann::json description;
};

// Collective if the optimizer is sharded. UsageError for a type of optimizer that
// optimizer_state_dict() does not take.
StoredOptimizer store_optimizer(std::string file, torch::optim::Optimizer& optimizer,
                                const torch::nn::Module& module, ProcessGroup& group);

// The names of the optimizer's parameters in the module, by their position; empty for a parameter
// of another module.
std::vector<std::string> parameter_names(const torch::optim::Optimizer& optimizer,
                                         const torch::nn::Module& module);

// For load_optimizer_state_dict. CheckpointError for tensors with other names.
TorchValue optimizer_state(const std::vector<NamedTensor>& tensors, const nlohmann::json& groups);

}  // namespace lockstep
