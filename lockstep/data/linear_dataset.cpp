// SPDX-License-Identifier: BSD-3-Clause
// Draws the points from a seeded generator.
#include "lockstep/data/linear_dataset.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

LinearDataset::LinearDataset(const LinearDatasetOptions& options) {
  if (options.size < 0) {
    throw UsageError({.component = "LinearDataset"},
                     fmt::format("size {} is negative", options.size), "give at least 0 samples");
  }
  // Its own generator: the data must not depend on the program's earlier draws.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const at::TensorOptions type(at::kFloat);
  inputs_ = at::randn({options.size, 1}, generator, type);
  targets_ = inputs_ * options.slope + options.intercept +
             at::randn({options.size, 1}, generator, type) * options.noise;
}

torch::data::Example<> LinearDataset::get(std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  return {inputs_[i], targets_[i]};
}

c10::optional<std::size_t> LinearDataset::size() const {
  return static_cast<std::size_t>(inputs_.size(0));
}

}  // namespace lockstep
