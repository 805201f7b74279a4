// SPDX-License-Identifier: BSD-3-Clause
// Finds parameters that were registered after construction.
#include "lockstep/parallel/known_parameters.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/distinct_parameters.h"

namespace lockstep {

KnownParameters::KnownParameters(const torch::nn::Module& module, std::string where)
    : module_(&module), where_(std::move(where)) {
  for (const at::Tensor& parameter : distinct_parameters(module)) {
    known_.push_back(parameter.unsafeGetTensorImpl());
  }
}

void KnownParameters::warn_of_new() {
  // Listing parameters takes microseconds, which small models would notice in each step.
  constexpr std::uint64_t kForwardsPerLook = 64;
  if (warned_ || forwards_++ % kForwardsPerLook != 0) return;
  for (const auto& [name, parameter] : distinct_named_parameters(*module_)) {
    const auto* tensor = parameter.unsafeGetTensorImpl();
    const bool known = std::find(known_.begin(), known_.end(), tensor) != known_.end();
    if (known || !parameter.requires_grad()) continue;
    warned_ = true;
    libtorch::warn(
        "forward",
        fmt::format(
            "{}the module got parameter {} after it was wrapped. Its gradients are not reduced, "
            "and the ranks' values of it will differ. Build the whole model first, then wrap it",
            where_, name));
    return;
  }
}

}  // namespace lockstep
