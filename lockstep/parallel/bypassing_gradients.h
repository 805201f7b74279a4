// SPDX-License-Identifier: BSD-3-Clause
// Gradients that reach parameters around the outputs of the wrapper: by a penalty in a backward of
// its own, a loss that the module keeps, or a forward of the module itself. Decides whether they
// belong to the step, and refuses updates with gradients that were not reduced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/misuse_checks.h"
#include "lockstep/parallel/parameter_snapshot.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Parameters are counted as in the list that the constructor takes.
class BypassingGradients {
 public:
  BypassingGradients(const std::vector<NamedTensor>& parameters, ErrorContext context);

  // A synchronized forward has run. Until the parameters change, every backward belongs to its
  // step.
  void begin_step();
  bool belongs_to_step(int parameter) const;
  // The gradient of the parameter gets a part of this rank only. UsageError if the parameter has
  // changed since it last got one.
  void keep_on_this_rank(int parameter);
  // All gradients have been reduced.
  void clear();

  // UsageError if a parameter has been updated with a gradient that was not reduced.
  void refuse_updates() const;
  // UsageError in the caller's context if a gradient to step with has parts that were not reduced.
  void require_reduced(const ErrorContext& caller) const;

  // UpdateCount, of the changes of parameters from one begin_step() to the next.
  int update_code() const { return updates_.code(); }
  std::string compare_updates(ProcessGroup& group);

 private:
  struct Parameter {
    NamedTensor named;
    ParameterSnapshot at_forward = {};  // after the last synchronized forward
    // values_of() at the gradient's last contribution that has not been reduced.
    std::optional<std::uint64_t> at_bypass = {};
  };

  // Detects any change: a hash of the values; on a GPU, where reading values would synchronize,
  // autograd's version.
  static std::uint64_t values_of(const at::Tensor& parameter);
  [[noreturn]] void refuse_update(const Parameter& parameter) const;

  std::vector<Parameter> parameters_;
  ErrorContext context_;
  bool any_kept_ = false;  // whether a parameter has an at_bypass
  UpdateCount updates_;
};

}  // namespace lockstep
