// SPDX-License-Identifier: BSD-3-Clause
// Mirrors the script's parameters, buffers and submodules in a torch::nn::Module.
#include <ostream>

#include "lockstep/parallel/wrapped_module.h"

namespace lockstep {

ScriptModule::ScriptModule(torch::jit::Module script) : script_(std::move(script)) {
  for (const auto& parameter : script_.named_parameters(/*recurse=*/false)) {
    register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script_.named_buffers(/*recurse=*/false)) {
    register_buffer(buffer.name, buffer.value);
  }
  for (const auto& child : script_.named_children()) {
    register_module(child.name, std::make_shared<ScriptModule>(child.value));
  }
  train(script_.is_training());
}

void ScriptModule::train(bool on) {
  torch::nn::Module::train(on);
  script_.train(on);
}

std::shared_ptr<torch::nn::Module> ScriptModule::clone(
    const c10::optional<torch::Device>& device) const {
  const at::NoGradGuard no_grad;
  const auto copy = std::make_shared<ScriptModule>(script_.deepcopy());
  if (device) copy->to(*device);
  return copy;
}

void ScriptModule::pretty_print(std::ostream& stream) const {
  stream << script_.type()->repr_str();
}

}  // namespace lockstep
