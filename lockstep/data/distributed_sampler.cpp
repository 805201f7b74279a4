// SPDX-License-Identifier: BSD-3-Clause
// Visits every sample once an epoch, in order or shuffled.
#include "lockstep/data/distributed_sampler.h"

#include "lockstep/data/sample_order.h"

namespace lockstep {

DistributedSampler::DistributedSampler(DatasetSize dataset, GroupArgument group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(dataset, group.get().size(), group.get().rank(), options) {}

DistributedSampler::DistributedSampler(DatasetSize dataset, int num_replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : EpochSampler("DistributedSampler", {dataset.get(), num_replicas, rank, options.drop_last},
                   options.shuffle ? std::optional(options.seed) : std::nullopt),
      shuffle_(options.shuffle),
      seed_(options.seed) {}

std::vector<std::size_t> DistributedSampler::order(std::size_t size, std::int64_t epoch) const {
  return sample_order(size, shuffle_, seed_, epoch);
}

}  // namespace lockstep
