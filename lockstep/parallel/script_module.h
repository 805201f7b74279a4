// SPDX-License-Identifier: BSD-3-Clause
// A TorchScript module as a torch::nn::Module, which it is not: what the wrappers know is the
// latter.
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

namespace lockstep {

// Its parameters, buffers and submodules are the script's own, under the same names: what is done
// to one is done to the other. A script that gets other ones has to be wrapped anew.
class ScriptModule : public torch::nn::Module {
 public:
  explicit ScriptModule(torch::jit::Module script);

  // As of torch::jit::Module: a tensor or whatever the script's forward takes; so is the result.
  torch::jit::IValue forward(std::vector<torch::jit::IValue> inputs) {
    return script_.forward(std::move(inputs));
  }

  // For saving, and for its other methods.
  const torch::jit::Module& script() const { return script_; }
  torch::jit::Module& script() { return script_; }

  // Of the script too.
  void train(bool on = true) override;
  // With a copy of the script.
  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<torch::Device>& device = {}) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};

}  // namespace lockstep
