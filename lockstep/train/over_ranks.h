// SPDX-License-Identifier: BSD-3-Clause
// Public. Helpers for a training loop on several ranks: seeds, lines that appear once, means over
// all samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Seeds libtorch's generators, on the CPU and all GPUs, with seed + rank: ranks draw different
// dropout masks and augmentations. Rank 0 draws the same numbers as a run with a single process,
// and DistributedDataParallel gives its weights to all ranks. A Reducer does not: before making its
// model, seed all ranks alike with torch::manual_seed; then call this.
void seed_everything(std::uint64_t seed, const ProcessGroup& group);
void seed_everything(std::uint64_t seed, const std::shared_ptr<ProcessGroup>& group);

// On rank 0, writes the line to standard output and flushes it; does nothing on other ranks. No
// communication. A line that cannot be written, as on a full disk, is lost without an error.
void print0(const ProcessGroup& group, std::string_view line);
void print0(const std::shared_ptr<ProcessGroup>& group, std::string_view line);

// Collective, blocking. Each rank passes sums over its own samples, and the number of samples in
// each sum; both 1-D and of the same length on every rank. Returns the mean for each entry, in
// double on the CPU, the same bits on every rank; NaN for an entry without samples.
at::Tensor mean_over_ranks(const at::Tensor& sums, const at::Tensor& samples, GroupArgument group);

}  // namespace lockstep
