// SPDX-License-Identifier: BSD-3-Clause
// Bytes: sums a histogram over all ranks. Features: sums rows in blocks that do not depend on the
// number of ranks, and the blocks in their order.
#include "lockstep/data/standardization.h"

#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Few, since each block needs a row of sums in memory; more than a host has cores, which divide
// them.
constexpr std::int64_t kBlocks = 64;

// Adds each row to the sums, or its squared distances from the means: one after another, since
// libtorch's order depends on its threads.
void add_rows(const at::Tensor& rows, const double* means, double* sums) {
  const at::Tensor wide = on_host(rows.to(at::kDouble));
  const std::int64_t features = wide.size(1);
  const double* row = wide.data_ptr<double>();
  for (std::int64_t i = 0; i < wide.size(0); ++i, row += features) {
    for (std::int64_t feature = 0; feature < features; ++feature) {
      const double distance = means == nullptr ? row[feature] : row[feature] - means[feature];
      sums[feature] += means == nullptr ? distance : distance * distance;
    }
  }
}

// Collective. Returns the means of the rows, or of their squared distances from `means` if that is
// defined.
at::Tensor mean_of_blocks(const at::Tensor& rows, const at::Tensor& means, ProcessGroup& group) {
  const CallScope scope(CallOrigin::standardization);
  const std::int64_t count = rows.size(0);
  const std::int64_t features = rows.size(1);
  at::Tensor sums = at::zeros({kBlocks, features}, at::kDouble);
  const std::int64_t last = kBlocks * (group.rank() + 1) / group.size();
  for (std::int64_t block = kBlocks * group.rank() / group.size(); block < last; ++block) {
    add_rows(rows.slice(0, count * block / kBlocks, count * (block + 1) / kBlocks),
             means.defined() ? means.data_ptr<double>() : nullptr,
             sums.data_ptr<double>() + block * features);
  }
  // A block's sums come from one rank; the others add zeros.
  sums = sums.to(group.device());
  group.all_reduce(sums).wait();
  sums = sums.cpu();
  at::Tensor total = at::zeros({features}, at::kDouble);
  for (std::int64_t block = 0; block < kBlocks; ++block) total.add_(sums[block]);
  return total.div_(static_cast<double>(count));
}

void require_rows(const at::Tensor& rows, const ProcessGroup& group) {
  if (rows.dim() == 0 || rows.numel() == 0 || rows.is_complex()) {
    throw UsageError(group.context("measure_feature_standardization"),
                     fmt::format("rows of type {} with {} elements",
                                 at::toString(rows.scalar_type()), rows.numel()),
                     "give at least one row of real numbers");
  }
}

void require_finite(const at::Tensor& means, const ProcessGroup& group) {
  const at::Tensor bad = at::isfinite(means).logical_not().nonzero();
  if (bad.numel() == 0) return;
  throw UsageError(group.context("measure_feature_standardization"),
                   fmt::format("feature {} is infinite or NaN in some row, or too large to be "
                               "summed up",
                               bad[0][0].item<std::int64_t>()),
                   "remove or replace such values first");
}

}  // namespace

at::Tensor Standardization::apply(const at::Tensor& images) const {
  return images.to(at::kFloat).sub_(mean).div_(deviation);
}

Standardization measure_standardization(const at::Tensor& images, GroupArgument argument) {
  const CallScope scope(CallOrigin::standardization);
  ProcessGroup& group = argument.get();
  if (images.scalar_type() != at::kByte || images.numel() == 0) {
    throw UsageError(group.context("measure_standardization"),
                     fmt::format("images of type {} with {} elements",
                                 at::toString(images.scalar_type()), images.numel()),
                     "give at least one uint8 image");
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

at::Tensor FeatureStandardization::apply(const at::Tensor& rows) const {
  return rows.to(at::kDouble)
      .sub(mean.to(rows.device()))
      .div_(deviation.to(rows.device()))
      .to(at::kFloat);
}

FeatureStandardization measure_feature_standardization(const at::Tensor& rows,
                                                       GroupArgument argument) {
  ProcessGroup& group = argument.get();
  require_rows(rows, group);
  const at::Tensor flat = rows.detach().cpu().reshape({rows.size(0), -1});
  const at::Tensor means = mean_of_blocks(flat, {}, group);
  require_finite(means, group);
  const at::Tensor deviations = mean_of_blocks(flat, means, group).sqrt_();
  // Every rank has all rows. Rounding of the mean may leave equal ones a tiny deviation.
  const at::Tensor first = flat.select(0, 0);
  deviations.masked_fill_((flat == first).all(0).logical_or(deviations == 0), 1);
  const auto shape = rows.sizes().slice(1);
  return {means.reshape(shape), deviations.reshape(shape)};
}

}  // namespace lockstep
