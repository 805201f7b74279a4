// SPDX-License-Identifier: BSD-3-Clause
// Wraps a TorchScript module as a torch::nn::Module, since the wrappers only know the latter.
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

namespace lockstep {

// Its parameters, buffers and submodules are the script's own, with the same names: changes of one
// appear in the other. If the script gets new ones, wrap it again.
class ScriptModule : public torch::nn::Module {
 public:
  explicit ScriptModule(torch::jit::Module script);

  // As in torch::jit::Module: arguments and result are whatever the script's forward takes and
  // returns.
  torch::jit::IValue forward(std::vector<torch::jit::IValue> inputs) {
    return script_.forward(std::move(inputs));
  }

  // The script itself, for saving and for calling its other methods.
  const torch::jit::Module& script() const { return script_; }
  torch::jit::Module& script() { return script_; }

  // Also sets the script's mode.
  void train(bool on = true) override;
  // The clone has a copy of the script.
  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<torch::Device>& device = {}) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};

}  // namespace lockstep
