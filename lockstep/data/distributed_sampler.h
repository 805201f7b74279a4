// SPDX-License-Identifier: BSD-3-Clause
// Public. Distributes the samples of a data set over the ranks of a group, like Python's
// torch.utils.data.DistributedSampler: the same arguments give the same indices.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/util/Optional.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

// Every data set of libtorch, also after map().
template <class D>
concept DatasetWithSize = requires(const D& dataset) {
  { dataset.size() } -> std::same_as<c10::optional<std::size_t>>;
};

// Takes both a data set and a number of samples. Does not keep the data set.
class DatasetSize {
 public:
  DatasetSize(std::size_t size) : size_(size) {}
  // UsageError if the data set does not know its size.
  template <DatasetWithSize D>
  DatasetSize(const D& dataset) : size_(known(dataset.size())) {}

  std::size_t get() const { return size_; }

 private:
  static std::size_t known(c10::optional<std::size_t> size) {
    if (size) return *size;
    throw UsageError(
        "the data set has no size, and a sampler needs one; give the number of samples instead, or "
        "let each rank take its batches from the loader with a ShardingFilter");
  }

  std::size_t size_;
};

struct DistributedSamplerOptions {
  bool shuffle = true;
  // Must be the same on every rank. seed + epoch determines an epoch's order.
  std::int64_t seed = 0;
  // Drops the remainder that does not divide evenly among the ranks, instead of padding with the
  // first samples.
  bool drop_last = false;
};

// Keeps neither the data set nor the group alive.
class DistributedSampler : public EpochSampler {
 public:
  // Makes the sampler of this rank of the group.
  DistributedSampler(DatasetSize dataset, GroupArgument group,
                     const DistributedSamplerOptions& options = {});
  // Makes the sampler of rank `rank` of `num_replicas`. UsageError unless 0 <= rank < num_replicas.
  DistributedSampler(DatasetSize dataset, int num_replicas, int rank,
                     const DistributedSamplerOptions& options = {});

 private:
  std::vector<std::size_t> order(std::size_t size, std::int64_t epoch) const override;

  bool shuffle_;
  std::int64_t seed_;
};

}  // namespace lockstep
