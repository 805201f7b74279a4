// SPDX-License-Identifier: BSD-3-Clause
// Warns of parameters that a module got after it was wrapped: nobody reduces their gradients.
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

  // Called before each forward. Warns once, through TORCH_WARN.
  void look();

 private:
  const torch::nn::Module* module_;
  std::string where_;
  std::vector<const at::TensorImpl*> known_;
  std::uint64_t looks_ = 0;
  bool warned_ = false;
};

}  // namespace lockstep
