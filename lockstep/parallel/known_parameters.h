// SPDX-License-Identifier: BSD-3-Clause
// Warns of parameters that a module got after it was wrapped: their gradients are not reduced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep {

class KnownParameters {
 public:
  // `where` begins the warning. The module outlives this object.
  KnownParameters(const torch::nn::Module& module, std::string where);

  // Called before each synchronized forward; looks in the first one and then in each 64th. Warns
  // once, through TORCH_WARN, of parameters that require a gradient.
  void warn_of_new();

 private:
  const torch::nn::Module* module_;
  std::string where_;
  std::vector<const at::TensorImpl*> known_;
  std::uint64_t forwards_ = 0;
  bool warned_ = false;
};

}  // namespace lockstep
