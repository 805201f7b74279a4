// SPDX-License-Identifier: BSD-3-Clause
// Public. Loads batches of a data set in threads of its own, ahead of training, in an order that
// does not depend on the number of threads, and that resumes in the middle of an epoch. libtorch's
// torch::data::make_data_loader does neither.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/data/example.h>

#include "lockstep/data/batch_iterator.h"
#include "lockstep/data/batch_transforms.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

struct DataLoaderOptions {
  std::size_t batch_size = 1;
  // Threads that load batches, each one batch at a time: Python's num_workers. 0: the thread of the
  // loop loads each batch when it asks for it. Each worker computes with one thread.
  int workers = 2;
  // Batches for each worker that are loaded or being loaded before the loop asks for them. They
  // stay in memory. Python's name and default.
  int prefetch_factor = 2;
  // The device of the batches. For a GPU, workers put them into pinned memory, and the copy may be
  // in progress when the loop gets the batch: work on the current stream waits for it.
  at::Device device = at::kCPU;
  // Applied to each batch, in this order, by the worker that loads it (batch_transforms.h).
  std::vector<BatchTransform> transforms = {};
  // For the transforms' random numbers. Give every rank the same.
  std::int64_t seed = 0;
  // How long the loop waits for a batch that a worker loads, before it throws TimeoutError.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// A data set of single samples: libtorch's and Lockstep's. Each worker uses a copy of it. get()
// must be a function of the index alone.
template <class D>
concept SampleDataset = std::copy_constructible<D> && DatasetWithSize<D> &&
    requires(D& dataset, std::size_t index) {
  { dataset.get(index) } -> std::convertible_to<torch::data::Example<>>;
};

// One loop over the loader is one epoch: begin() resets the sampler, and so applies its set_epoch
// or resume, and starts the workers. They end with the loop, also after a break, so the process may
// fork between loops. A batch has the samples' tensors stacked along a new first
// dimension. The last batch may be smaller.
//
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : loader) ...
//   }
//
// The samples of a batch are those that the sampler gives, whatever the workers do. To resume in
// the middle of an epoch, count the samples that were trained on, save
// sampler.cursor_after(samples), and resume() the sampler from it, as Trainer does: batches that
// were only prefetched do not count.
//
// An exception of the data set or a transform reaches the loop when it comes to that batch, after
// all batches before it. Errors of Lockstep keep their type and get the sample's
// index; any other std::exception is nested in an Error that has it. The loop then ends.
//
// One loop at a time. A loop belongs to one thread. In a child that is forked during a loop, the
// loop throws UsageError. Leaving a loop waits for the samples that the workers are loading, for at
// most .timeout; a worker that hangs longer is left behind.
class DataLoader {
 public:
  using Batch = torch::data::Example<>;
  using Iterator = BatchIterator;

  // Copies the data set and the sampler. UsageError for options out of range, and if the sampler
  // returns an index out of range during a loop, or samples of different shapes are in a batch.
  template <SampleDataset D, std::derived_from<EpochSampler> S>
  DataLoader(D dataset, S sampler, const DataLoaderOptions& options)
      : DataLoader(std::move(dataset), std::make_unique<S>(std::move(sampler)), options) {}
  // Takes the sampler, which must not be null.
  template <SampleDataset D>
  DataLoader(D dataset, std::unique_ptr<EpochSampler> sampler, const DataLoaderOptions& options)
      : DataLoader(
            DatasetSize(dataset).get(),
            [dataset] { return [copy = dataset](std::size_t i) mutable { return copy.get(i); }; },
            std::move(sampler), options) {}

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // The batches of a whole epoch, the same on every rank.
  std::size_t batches_per_epoch() const;
  std::size_t batch_size() const;

 private:
  using LoadSample = std::function<torch::data::Example<>(std::size_t)>;
  // Makes a function with its own copy of the data set.
  using MakeLoadSample = std::function<LoadSample()>;
  struct Source;
  class Loop;

  DataLoader(std::size_t size, MakeLoadSample make_load_sample,
             std::unique_ptr<EpochSampler> sampler, const DataLoaderOptions& options);

  std::shared_ptr<Source> source_;
};

}  // namespace lockstep
