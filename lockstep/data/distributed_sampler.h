// SPDX-License-Identifier: BSD-3-Clause
// Distributes the samples of a data set over the ranks of a group, like Python's
// torch.utils.data.DistributedSampler: the same arguments give the same indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/group_argument.h"
#include "lockstep/data/dataset_size.h"
#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

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
  // For this rank of the group.
  DistributedSampler(DatasetSize dataset, GroupArgument group,
                     const DistributedSamplerOptions& options = {});
  // For rank `rank` of `num_replicas`. UsageError unless 0 <= rank < num_replicas.
  DistributedSampler(DatasetSize dataset, int num_replicas, int rank,
                     const DistributedSamplerOptions& options = {});

 private:
  std::vector<std::size_t> order(std::size_t size, std::int64_t epoch) const override;

  bool shuffle_;
  std::int64_t seed_;
};

}  // namespace lockstep
