// SPDX-License-Identifier: BSD-3-Clause
// The sampler's position in an epoch, and how it is saved and loaded.
#include "lockstep/data/distributed_sampler.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"

namespace lockstep {

DistributedSampler::DistributedSampler(std::size_t size, const ProcessGroup& group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(size, group.size(), group.rank(), options) {}

DistributedSampler::DistributedSampler(std::size_t size, const std::shared_ptr<ProcessGroup>& group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(size, GroupArgument(group).get(), options) {}

DistributedSampler::DistributedSampler(std::size_t size, int num_replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : share_{size, num_replicas, rank, options.drop_last},
      shuffle_(options.shuffle),
      seed_(options.seed),
      epoch_(std::make_shared<std::atomic<std::int64_t>>(0)) {
  require_rank("DistributedSampler", num_replicas, rank);
}

std::vector<std::size_t> DistributedSampler::indices_of(std::int64_t epoch) const {
  const auto order = sample_order(share_.size, shuffle_, seed_, epoch);
  std::vector<std::size_t> indices(share_.count());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = order[share_.position(i)];
  return indices;
}

std::vector<std::size_t> DistributedSampler::indices() const {
  return indices_of(*epoch_);
}

void DistributedSampler::reset(c10::optional<std::size_t> new_size) {
  if (new_size) share_.size = *new_size;
  position_ = 0;
  running_epoch_ = *epoch_;
  started_ = true;
  indices_ = indices_of(running_epoch_);
}

c10::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (batch_size == 0) {
    throw UsageError(
        fmt::format("DistributedSampler, rank {} of {}: a batch of 0 samples was asked for; use a "
                    "batch size of at least 1",
                    share_.rank, share_.ranks));
  }
  if (!started_) reset();
  if (position_ == indices_.size()) return c10::nullopt;
  const std::size_t count = std::min(batch_size, indices_.size() - position_);
  const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ += count;
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", c10::IValue(started_ ? running_epoch_ : epoch()));
  archive.write("position", c10::IValue(static_cast<std::int64_t>(position_)));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  c10::IValue position;
  archive.read("epoch", epoch);
  archive.read("position", position);
  const auto at = static_cast<std::size_t>(position.toInt());
  if (position.toInt() < 0 || at > share_.count()) {
    throw UsageError(fmt::format(
        "DistributedSampler, rank {} of {}: the saved position {} lies outside this rank's {} "
        "samples; load it with the data set and the number of ranks that it was saved with",
        share_.rank, share_.ranks, position.toInt(), share_.count()));
  }
  set_epoch(epoch.toInt());
  reset();
  position_ = at;
}

}  // namespace lockstep
