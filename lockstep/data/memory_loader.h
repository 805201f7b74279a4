// SPDX-License-Identifier: BSD-3-Clause
// Public. Yields batches of a data set that fits in memory, in a sampler's order, at the cost of
// copying the rows.
#pragma once

#include <concepts>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>
#include <torch/data/samplers/base.h>

#include "lockstep/data/batch_iterator.h"

namespace lockstep {

struct MemoryLoaderOptions {
  std::size_t batch_size = 1;
  // The device of the batches. From the CPU to a GPU, batches go through pinned memory, and the
  // copy may be in progress when the batch is returned: work on the current stream waits for it.
  at::Device device = at::kCPU;
};

// One loop over the loader is one epoch: begin() resets the sampler and so applies its set_epoch.
// The last batch may be smaller. The sampler is copied; the tensors are shared and must not change
// during a loop. One loop at a time.
class MemoryLoader {
 public:
  using Batch = torch::data::Example<>;
  using Iterator = BatchIterator;
  using Sampler = torch::data::samplers::Sampler<>;

  // data and target have one row per sample, in dimension 0. UsageError if their numbers of rows
  // differ or batch_size is 0; during a loop, if the sampler returns a row out of range.
  template <std::derived_from<Sampler> S>
  MemoryLoader(at::Tensor data, at::Tensor target, S sampler, const MemoryLoaderOptions& options)
      : MemoryLoader(std::move(data), std::move(target), std::make_unique<S>(std::move(sampler)),
                     options) {}
  MemoryLoader(at::Tensor data, at::Tensor target, std::unique_ptr<Sampler> sampler,
               const MemoryLoaderOptions& options);

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  const MemoryLoaderOptions& options() const { return options_; }

 private:
  std::optional<Batch> next();

  at::Tensor data_;
  at::Tensor target_;
  std::unique_ptr<Sampler> sampler_;
  MemoryLoaderOptions options_;
};

}  // namespace lockstep
