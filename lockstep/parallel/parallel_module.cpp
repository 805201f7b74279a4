// SPDX-License-Identifier: BSD-3-Clause
// Registers the wrapped module.
#include "lockstep/parallel/parallel_module.h"

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

}  // namespace lockstep
