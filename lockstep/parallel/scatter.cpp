// SPDX-License-Identifier: BSD-3-Clause
// Computes the parts' bounds, and copies them to their devices.
#include "lockstep/parallel/scatter.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

std::string sizes_in_words(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

std::int64_t Scatter::begin(int part) const {
  return part * (size_ / parts_) + std::min<std::int64_t>(part, size_ % parts_);
}

at::Tensor Scatter::part(const at::Tensor& tensor, int part, at::Device device) const {
  return copy(tensor, begin(part), length(part), device);
}

at::Tensor Scatter::copy(const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
                         at::Device device) const {
  if (!tensor.defined()) return tensor;
  const at::Tensor plain = tensor.detach();
  return (cuts(plain) ? plain.narrow(dim_, begin, length) : plain)
      .to(device, plain.scalar_type(), /*non_blocking=*/!device.is_cpu(), /*copy=*/true);
}

std::optional<Scatter> plan_scatter(const std::vector<at::Tensor>& inputs, std::int64_t dim,
                                    int most_parts) {
  std::optional<std::int64_t> samples;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || input.dim() <= dim) continue;
    if (!samples) samples = input.size(dim);
    if (*samples == input.size(dim)) continue;
    throw UsageError({.component = "DataParallel"},
                     fmt::format("dimension {} has {} elements in one input and {} in another, so "
                                 "the batch cannot be cut",
                                 dim, *samples, input.size(dim)),
                     "put the samples of every tensor in that dimension, set .dim, or make a "
                     "tensor without samples a buffer of the module");
  }
  if (!samples) return {};
  const auto parts = std::clamp<std::int64_t>(*samples, 1, most_parts);
  return Scatter(dim, *samples, static_cast<int>(parts));
}

}  // namespace lockstep
