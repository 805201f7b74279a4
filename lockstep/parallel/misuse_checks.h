// SPDX-License-Identifier: BSD-3-Clause
// Finds what users do by mistake and training would not show: parameters that change or appear
// after a model was wrapped, ranks that draw the same random numbers, and ranks that are in
// different steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// The parameters of a model as they were when it was wrapped.
class WrappedParameters {
 public:
  WrappedParameters(const std::vector<NamedTensor>& parameters, ErrorContext context);

  // UsageError if a parameter has been frozen, unfrozen, converted, moved or resized since.
  void check() const;

 private:
  struct Parameter {
    NamedTensor named;
    bool requires_grad;
    GradientSize size;
    std::vector<std::int64_t> sizes;
  };

  [[noreturn]] void refuse_change(const std::string& parameter, const std::string& change) const;

  std::vector<Parameter> parameters_;
  ErrorContext context_;
};

// Warns of parameters that a module got after it was wrapped: their gradients are not reduced.
class KnownParameters {
 public:
  // The module outlives this object.
  KnownParameters(const torch::nn::Module& module, ErrorContext context);

  // Called before each synchronized forward; looks in the first one and then in each 64th. Warns
  // once, through TORCH_WARN, of parameters that require a gradient.
  void warn_of_new();

 private:
  const torch::nn::Module* module_;
  ErrorContext context_;
  std::vector<const at::TensorImpl*> known_;
  std::uint64_t forwards_ = 0;
  bool warned_ = false;
};

// The state from which the first forward of a model draws random numbers.
class FirstDraw {
 public:
  // Reads the default generator of libtorch for this device.
  explicit FirstDraw(at::Device device) : device_(device) {}

  void before_forward() { before_ = state_hash(); }
  // A hash of the state from which the forward has drawn; 0 if it drew nothing.
  std::int64_t after_forward() const { return state_hash() == before_ ? 0 : before_; }

 private:
  std::int64_t state_hash() const;

  at::Device device_;
  std::int64_t before_ = 0;
};

// Warns, on rank 1 only, that the first forward drew the same random numbers as on rank 0. The
// draws come from FirstDraw; 0 if nothing was drawn.
void warn_of_equal_draws(const ProcessGroup& group, std::int64_t own_draw,
                         std::int64_t draw_of_rank_0);

// Finds ranks that reduce gradients of different steps together: their parameters have been updated
// differently often. Every reduction carries a code of the number of in-place changes, as autograd
// counts them. Ranks compare their parameters only if codes differ, since a rank may also change
// parameters and change them back, to evaluate averaged weights, say.
class UpdateCount {
 public:
  // All changes so far, as autograd counts them, and whether there were others since the last call.
  // Changes before the first call are not counted.
  void set(std::int64_t changes, bool any_uncounted) {
    if (any_uncounted) ++uncounted_;
    changes_ = changes + uncounted_;
    if (!agreed_) agreed_ = changes_;
  }
  // From 0 to kUpdateCodes - 1. Different counts have the same code now and then, but not for long.
  int code() const;
  // Collective, called on every rank if ranks have different codes. The message of this rank's
  // error; empty if the parameters are equal, from which on changes are counted from zero.
  std::string compare(ProcessGroup& group, const std::vector<at::Tensor>& parameters);

 private:
  std::int64_t count() const { return changes_ - agreed_.value_or(changes_); }

  std::int64_t uncounted_ = 0;
  std::int64_t changes_ = 0;
  std::optional<std::int64_t> agreed_;
  // Counts that differ again and again, between equal parameters, are compared ever more rarely.
  int skipped_ = 0;
  int skips_ = 0;
};

}  // namespace lockstep
