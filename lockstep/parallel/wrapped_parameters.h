// SPDX-License-Identifier: BSD-3-Clause
// The parameters of a wrapped model as they were when it was wrapped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

class WrappedParameters {
 public:
  // `where` begins the error's message.
  WrappedParameters(const std::vector<NamedTensor>& parameters, std::string where);

  // UsageError if a parameter has been frozen, unfrozen, converted, moved or resized since.
  void check() const;

 private:
  struct Parameter {
    NamedTensor named;
    bool requires_grad;
    GradientSize size;
    std::vector<std::int64_t> sizes;
  };

  std::vector<Parameter> parameters_;
  std::string where_;
};

}  // namespace lockstep
