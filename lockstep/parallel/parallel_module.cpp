// SPDX-License-Identifier: BSD-3-Clause
// Registers the wrapped module, and mirrors the parameters, buffers and submodules of a script.
#include "lockstep/parallel/parallel_module.h"

#include <ostream>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

ParallelModule::ParallelModule(std::string name, std::shared_ptr<torch::nn::Module> module)
    : torch::nn::Module(std::move(name)), inner_(std::move(module)) {
  if (!inner_) throw UsageError(fmt::format("[{}] the module is empty", this->name()));
  register_module("module", inner_);
}

void ParallelModule::refuse_tensor() const {
  throw UsageError(fmt::format(
      "[{}] forward of {} does not take one tensor and return one. Call it through a wrapper of "
      "its own type: DistributedDataParallel<Net> or DataParallel<Net>",
      name(), inner_->name()));
}

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
