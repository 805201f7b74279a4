// SPDX-License-Identifier: BSD-3-Clause
// Sums rows in blocks that do not depend on the number of ranks, and the blocks in their order.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/data/standardization.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Few enough that one row of sums for each takes little memory, and more than a host has cores.
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

// Over all ranks: the means of the rows, or of their squared distances from the means given.
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

std::string measuring(const ProcessGroup& group) {
  return fmt::format("measure_feature_standardization, rank {} of {}: ", group.rank(),
                     group.size());
}

void require_rows(const at::Tensor& rows, const ProcessGroup& group) {
  if (rows.dim() == 0 || rows.numel() == 0 || rows.is_complex()) {
    throw UsageError(measuring(group) +
                     fmt::format("rows of type {} with {} elements; give at least one row of real "
                                 "numbers",
                                 at::toString(rows.scalar_type()), rows.numel()));
  }
}

void require_finite(const at::Tensor& means, const ProcessGroup& group) {
  const at::Tensor bad = at::isfinite(means).logical_not().nonzero();
  if (bad.numel() == 0) return;
  throw UsageError(measuring(group) +
                   fmt::format("feature {} is infinite or NaN in some row, or too large to be "
                               "summed up; remove or replace such values first",
                               bad[0][0].item<std::int64_t>()));
}

}  // namespace

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
