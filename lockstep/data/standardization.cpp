// SPDX-License-Identifier: BSD-3-Clause
// Sums a histogram of byte values over all ranks.
#include "lockstep/data/standardization.h"

#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"

namespace lockstep {

at::Tensor Standardization::apply(const at::Tensor& images) const {
  return images.to(at::kFloat).sub_(mean).div_(deviation);
}

Standardization measure_standardization(const at::Tensor& images, GroupArgument argument) {
  const CallScope scope(CallOrigin::standardization);
  ProcessGroup& group = argument.get();
  if (images.scalar_type() != at::kByte || images.numel() == 0) {
    throw UsageError(fmt::format(
        "measure_standardization, rank {} of {}: images of type {} with {} elements; give at least "
        "one uint8 image",
        group.rank(), group.size(), at::toString(images.scalar_type()), images.numel()));
  }
  const std::int64_t samples = images.size(0);
  const std::int64_t first = samples * group.rank() / group.size();
  const std::int64_t last = samples * (group.rank() + 1) / group.size();
  // How often each byte value occurs: exact, and without a wider copy of the images.
  const at::Tensor counts = images.slice(0, first, last).flatten().cpu().bincount({}, 256);
  const at::Tensor values = at::arange(256, at::kLong);
  at::Tensor sums =
      at::tensor({counts.sum().item<std::int64_t>(), (counts * values).sum().item<std::int64_t>(),
                  (counts * values * values).sum().item<std::int64_t>()},
                 at::kLong)
          .to(group.device());
  group.all_reduce(sums).wait();
  sums = sums.cpu();

  const auto* total = sums.data_ptr<std::int64_t>();
  const auto count = static_cast<double>(total[0]);
  const double mean = static_cast<double>(total[1]) / count;
  const double variance = static_cast<double>(total[2]) / count - mean * mean;
  return {mean, variance > 0 ? std::sqrt(variance) : 1};
}

}  // namespace lockstep
