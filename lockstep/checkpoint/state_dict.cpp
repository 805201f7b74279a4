// SPDX-License-Identifier: BSD-3-Clause
// Walks a module as PyTorch does.
#include "lockstep/checkpoint/state_dict.h"

#include <fmt/format.h>

#include "lockstep/checkpoint/copy_by_name.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {
namespace {

void append_state(const torch::nn::Module& module, const std::string& prefix,
                  std::vector<NamedTensor>& state) {
  if (dynamic_cast<const ParallelModule*>(&module) != nullptr) {
    return append_state(*module.named_children()["module"], prefix, state);
  }
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    state.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    state.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) append_state(*child.value(), prefix + child.key() + ".", state);
  }
}

std::vector<NamedTensor> attached_state(const torch::nn::Module& module) {
  std::vector<NamedTensor> state;
  append_state(module, "", state);
  std::erase_if(state, [](const NamedTensor& entry) { return !entry.tensor.defined(); });
  return state;
}

}  // namespace

std::vector<NamedTensor> state_dict(const torch::nn::Module& module) {
  std::vector<NamedTensor> state = attached_state(module);
  for (auto& entry : state) entry.tensor = entry.tensor.detach();
  return state;
}

StateDifferences load_state_dict(torch::nn::Module& module, std::span<const NamedTensor> tensors,
                                 bool strict) {
  return copy_by_name(attached_state(module), tensors, strict,
                      fmt::format("this module ({})", module.name()));
}

}  // namespace lockstep
