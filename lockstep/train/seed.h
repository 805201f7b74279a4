// SPDX-License-Identifier: BSD-3-Clause
// Seeds the random numbers of ranks that train one model.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Seeds libtorch's generators, on the CPU and all GPUs, with seed + rank: ranks draw different
// dropout masks and augmentations. Rank 0 draws the same numbers as a single-process training, and
// DistributedDataParallel gives its weights to all ranks. A Reducer does not: with one, first seed
// all ranks alike with torch::manual_seed, make the model, then call this.
void seed_everything(std::uint64_t seed, const ProcessGroup& group);
void seed_everything(std::uint64_t seed, const std::shared_ptr<ProcessGroup>& group);

}  // namespace lockstep
