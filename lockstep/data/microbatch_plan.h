// SPDX-License-Identifier: BSD-3-Clause
// How the samples of an epoch are cut into global batches, these into microbatches, and which of
// the microbatches a rank loads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/comm/tree_sum.h"

namespace lockstep {

// The order of an epoch's samples is cut into global batches of microbatches * size samples; the
// last one may have fewer. A global batch is cut into consecutive microbatches whose sizes differ
// by at most one, the larger ones first; those of a small last batch may be empty. None of this
// depends on the number of ranks.
struct MicrobatchPlan {
  std::int64_t microbatches = 0;
  // The samples of each microbatch in a whole global batch.
  std::int64_t size = 0;
  // The microbatches of each global batch that this rank loads.
  LeafRange run = {};

  std::int64_t global_batch_size() const { return microbatches * size; }
  // The number of global batches in `samples` samples.
  std::int64_t steps_in(std::int64_t samples) const {
    return (samples + global_batch_size() - 1) / global_batch_size();
  }
  // The samples in the global batch that begins at sample `first` of `samples` samples.
  std::int64_t samples_of_step(std::int64_t first, std::int64_t samples) const {
    return std::min(global_batch_size(), samples - first);
  }
  // The position of the first sample of microbatch `index` within a global batch of `samples`
  // samples, which is also the end of the microbatch before it.
  std::int64_t begin_of(std::int64_t index, std::int64_t samples) const {
    return index * (samples / microbatches) + std::min(index, samples % microbatches);
  }
  std::int64_t size_of(std::int64_t index, std::int64_t samples) const {
    return begin_of(index + 1, samples) - begin_of(index, samples);
  }
};

}  // namespace lockstep
