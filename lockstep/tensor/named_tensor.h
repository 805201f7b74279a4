// SPDX-License-Identifier: BSD-3-Clause
// Public. A parameter or buffer and the name that messages use for it.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace lockstep
