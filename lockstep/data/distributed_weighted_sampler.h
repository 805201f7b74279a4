// SPDX-License-Identifier: BSD-3-Clause
// Public. Draws samples at random with given weights and distributes them over the ranks of a
// group, like Python's torch.utils.data.WeightedRandomSampler followed by a DistributedSampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

struct DistributedWeightedSamplerOptions {
  // Whether an epoch may draw a sample more than once.
  bool replacement = true;
  // Must be the same on every rank. seed + epoch determines an epoch's draw.
  std::int64_t seed = 0;
  // Drops the remainder that does not divide evenly among the ranks, instead of padding with the
  // first drawn samples.
  bool drop_last = false;
};

// Each epoch draws num_samples samples over all ranks, by torch.multinomial with a CPU generator
// with the seed seed + epoch; rank r takes draws r, r + ranks, and so on. The sequence of draws
// does not depend on the number of ranks, and equals the sequence of Python's
// WeightedRandomSampler.
//
// weights: [N], one for each sample of the data set, of any real type on any device, the same on
// every rank; at most 2^24. They need not sum to 1. They are copied, and copies of the sampler
// share them. UsageError if they are sparse or quantized, if a weight is negative, infinite or NaN,
// if none is positive, or unless 1 <= num_samples; without replacement, num_samples is at most the
// number of positive weights.
class DistributedWeightedSampler : public EpochSampler {
 public:
  // Makes the sampler of this rank of the group, which it does not keep alive.
  DistributedWeightedSampler(const at::Tensor& weights, std::int64_t num_samples,
                             GroupArgument group,
                             const DistributedWeightedSamplerOptions& options = {});
  // Makes the sampler of rank `rank` of `num_replicas`. UsageError unless 0 <= rank < num_replicas.
  DistributedWeightedSampler(const at::Tensor& weights, std::int64_t num_samples, int num_replicas,
                             int rank, const DistributedWeightedSamplerOptions& options = {});

  std::string description() const override;
  // EpochSampler::reset(). UsageError if a new size is not the number of weights.
  void reset(c10::optional<std::size_t> new_size = c10::nullopt) override;

 private:
  std::vector<std::size_t> order(std::size_t size, std::int64_t epoch) const override;

  // double [N], on the CPU.
  at::Tensor weights_;
  bool replacement_;
  std::int64_t seed_;
};

}  // namespace lockstep
