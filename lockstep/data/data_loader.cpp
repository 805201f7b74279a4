// SPDX-License-Identifier: BSD-3-Clause
// The queue of batches between a loop and its workers, and what a worker does with one.
#include "lockstep/data/data_loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

using Batch = DataLoader::Batch;

// Rethrows the exception being handled, with the operation.
[[noreturn]] void rethrow_with_context(ErrorContext context, std::string operation) {
  context.operation = std::move(operation);
  try {
    throw;
  } catch (const Error&) {
    rethrow_within(context);
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(context, first_line(error)));
  }
}

void require_device(at::Device device) {
  if (device_count(device.type()) > 0) return;
  throw UsageError({.component = "DataLoader"},
                   fmt::format("there is no device {} here", device.str()), "leave out .device");
}

// Thrown in a worker whose loop has ended.
struct LoaderStopped {};

}  // namespace

// Loads and transforms batches in one thread, with its own copy of the data set.
class BatchMaker {
 public:
  BatchMaker(std::size_t dataset_size,
             std::function<torch::data::Example<>(std::size_t)> load_sample,
             const DataLoaderOptions& options, std::int64_t epoch, const ErrorContext& context,
             const std::atomic<bool>& stopped)
      : dataset_size_(dataset_size),
        load_sample_(std::move(load_sample)),
        options_(options),
        epoch_(epoch),
        context_(context),
        stopped_(stopped) {}

  // LoaderStopped if the loop has ended meanwhile.
  Batch make(std::span<const std::size_t> samples) {
    const at::NoGradGuard no_gradients;
    const c10::DeviceGuard on_device(options_.device);
    Batch batch = load(samples);
    const BatchOrigin origin{
        .seed = options_.seed,
        .epoch = epoch_,
        .samples = samples,
        .dataset_size = dataset_size_,
        .load = [this](std::span<const std::size_t> others) { return load(others); }};
    const auto with_batch = [&](const auto& change) {
      try {
        change();
      } catch (const std::exception&) {
        rethrow_with_context(context_, fmt::format("epoch {}, the batch that begins with sample {}",
                                                   epoch_, samples.front()));
      }
    };
    with_batch([&] { apply_transforms(options_.transforms, batch, origin); });
    if (options_.device.is_cuda()) {
      with_batch([&] { batch = {pinned(batch.data), pinned(batch.target)}; });
    }
    return batch;
  }

 private:
  static at::Tensor pinned(const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().is_cpu() ? tensor.pin_memory() : tensor;
  }

  torch::data::Example<> load_one(std::size_t sample) {
    if (stopped_) throw LoaderStopped();
    try {
      if (sample >= dataset_size_) {
        throw UsageError(fmt::format(
            "the data set has {} samples; make the sampler for this data set", dataset_size_));
      }
      return load_sample_(sample);
    } catch (const std::exception&) {
      rethrow_with_context(context_, fmt::format("epoch {}, sample {}", epoch_, sample));
    }
  }

  Batch load(std::span<const std::size_t> samples) {
    std::vector<at::Tensor> data;
    std::vector<at::Tensor> targets;
    for (const std::size_t sample : samples) {
      auto example = load_one(sample);
      data.push_back(std::move(example.data));
      targets.push_back(std::move(example.target));
    }
    return {stack(data, samples, "data"), stack(targets, samples, "target")};
  }

  at::Tensor stack(const std::vector<at::Tensor>& tensors, std::span<const std::size_t> samples,
                   const char* what) const {
    const at::Tensor& first = tensors.front();
    if (!first.defined()) return {};
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].defined() && tensors[i].sizes() == first.sizes()) continue;
      throw UsageError(
          context_,
          fmt::format("the {0} of sample {1} has another shape than the {0} of sample {2} in its "
                      "batch, which is [{3}]",
                      what, samples[i], samples.front(), fmt::join(first.sizes(), ", ")),
          "give all samples one shape");
    }
    return at::stack(tensors);
  }

  std::size_t dataset_size_;
  std::function<torch::data::Example<>(std::size_t)> load_sample_;
  const DataLoaderOptions& options_;
  std::int64_t epoch_;
  ErrorContext context_;
  const std::atomic<bool>& stopped_;
};

// What the loader's loops share, and their workers read.
struct DataLoader::Source {
  std::size_t size;
  MakeLoadSample make_load_sample;
  std::unique_ptr<EpochSampler> sampler;
  DataLoaderOptions options;
};

// One epoch: draws batches from the sampler in order, hands them to the workers, and takes them
// back in the same order.
class DataLoader::Loop {
 public:
  explicit Loop(std::shared_ptr<Source> source);
  ~Loop() { stop(); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // nullopt at the end of the epoch.
  std::optional<Batch> next();

 private:
  struct Job {
    std::vector<std::size_t> samples;
    bool is_done = false;
    std::optional<Batch> batch = {};
    std::exception_ptr error = {};
  };

  // What the workers use. They keep it alive: one that hangs may outlive the loop.
  struct Shared {
    Shared(std::shared_ptr<Source> its_source, std::int64_t its_epoch)
        : source(std::move(its_source)), epoch(its_epoch) {}

    ErrorContext context() const {
      return {.component = "DataLoader",
              .rank = source->sampler->rank(),
              .size = source->sampler->num_replicas()};
    }
    BatchMaker make_maker() const {
      return BatchMaker(source->size, source->make_load_sample(), source->options, epoch, context(),
                        stopped);
    }

    const std::shared_ptr<Source> source;
    const std::int64_t epoch;
    std::atomic<bool> stopped = false;

    std::mutex mutex;
    std::condition_variable job_added;
    std::condition_variable job_done;
    // The oldest first. The first `begun` have been taken by workers.
    std::deque<Job> jobs;
    std::size_t begun = 0;
    int running = 0;
  };

  static void run(Job& job, BatchMaker& maker);
  static void work(Shared& shared);
  void add_jobs();
  Job take_job();
  void stop();

  const pid_t owner_ = ::getpid();
  std::shared_ptr<Shared> shared_;
  std::size_t window_;
  bool sampler_ended_ = false;
  // Without workers.
  std::optional<BatchMaker> maker_;
  std::vector<std::unique_ptr<ServiceThread>> workers_;
};

DataLoader::Loop::Loop(std::shared_ptr<Source> source)
    : shared_(std::make_shared<Shared>(source, source->sampler->epoch())) {
  const DataLoaderOptions& options = source->options;
  window_ = std::max<std::size_t>(1, static_cast<std::size_t>(options.workers) *
                                         static_cast<std::size_t>(options.prefetch_factor));
  if (options.workers == 0) maker_.emplace(shared_->make_maker());
  add_jobs();
  for (int i = 0; i < options.workers; ++i) {
    shared_->running += 1;
    const auto body = [shared = shared_](int) { work(*shared); };
    try {
      workers_.push_back(std::make_unique<ServiceThread>(body));
    } catch (...) {
      shared_->running -= 1;
      stop();
      throw;
    }
  }
}

void DataLoader::Loop::run(Job& job, BatchMaker& maker) {
  try {
    job.batch = maker.make(job.samples);
  } catch (const LoaderStopped&) {
  } catch (...) {
    job.error = std::current_exception();
  }
}

void DataLoader::Loop::work(Shared& shared) {
  const UntracedThread untraced;
  // Workers load several batches at once; if each operation had threads of its own, there would be
  // more of them than cores.
  at::get_num_threads();
  set_openmp_threads(1);
  std::optional<BatchMaker> maker;
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.job_added.wait(lock,
                          [&] { return shared.stopped || shared.begun < shared.jobs.size(); });
    if (shared.stopped) break;
    // Jobs before and behind it may come and go without moving it.
    Job& job = shared.jobs[shared.begun++];
    lock.unlock();
    try {
      // Here, so that a data set whose copy throws does not end the process.
      if (!maker) maker.emplace(shared.make_maker());
      run(job, *maker);
    } catch (...) {
      job.error = std::current_exception();
    }
    lock.lock();
    job.is_done = true;
    shared.job_done.notify_all();
  }
  maker.reset();
  shared.running -= 1;
  shared.job_done.notify_all();
}

// The sampler is used by the loop's thread alone.
void DataLoader::Loop::add_jobs() {
  Shared& shared = *shared_;
  const Source& source = *shared.source;
  while (!sampler_ended_) {
    {
      const std::lock_guard lock(shared.mutex);
      if (shared.jobs.size() >= window_) return;
    }
    auto samples = source.sampler->next(source.options.batch_size);
    if (!samples) {
      sampler_ended_ = true;
      return;
    }
    {
      const std::lock_guard lock(shared.mutex);
      shared.jobs.push_back({.samples = std::move(*samples)});
    }
    shared.job_added.notify_one();
  }
}

DataLoader::Loop::Job DataLoader::Loop::take_job() {
  Shared& shared = *shared_;
  if (maker_) run(shared.jobs.front(), *maker_);
  std::unique_lock lock(shared.mutex);
  if (!maker_) {
    const auto deadline = Deadline::after(shared.source->options.timeout);
    if (!shared.job_done.wait_for(lock, deadline.remaining(),
                                  [&] { return shared.jobs.front().is_done; })) {
      throw TimeoutError(
          shared.context(),
          fmt::format("epoch {}, the batch that begins with sample {}: no worker has loaded it "
                      "within {} s",
                      shared.epoch, shared.jobs.front().samples.front(),
                      std::chrono::duration<double>(deadline.span()).count()),
          "find out why the data set hangs, or raise .timeout");
    }
    shared.begun -= 1;
  }
  Job job = std::move(shared.jobs.front());
  shared.jobs.pop_front();
  return job;
}

std::optional<Batch> DataLoader::Loop::next() {
  const TracedSpan span("data");
  if (::getpid() != owner_) {
    throw UsageError(
        "DataLoader: this loop began before the process forked, and its workers stayed in the "
        "parent; begin a new loop here");
  }
  if (shared_->stopped) return std::nullopt;
  if (shared_->jobs.empty()) {
    stop();
    return std::nullopt;
  }
  try {
    Job job = take_job();
    if (job.error) std::rethrow_exception(job.error);
    add_jobs();
    const at::Device device = shared_->source->options.device;
    const auto on_device = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(device, /*non_blocking=*/device.is_cuda()) : tensor;
    };
    return Batch{on_device(job.batch->data), on_device(job.batch->target)};
  } catch (...) {
    stop();
    throw;
  }
}

// Ends the workers. In a forked child there are none; their mutex may stay locked.
void DataLoader::Loop::stop() {
  if (::getpid() != owner_) return;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stopped = true;
    shared_->job_added.notify_all();
    const auto deadline = Deadline::after(shared_->source->options.timeout);
    if (!shared_->job_done.wait_for(lock, deadline.remaining(),
                                    [&] { return shared_->running == 0; })) {
      for (auto& worker : workers_) worker->leave();
    }
  }
  workers_.clear();
}

DataLoader::DataLoader(std::size_t size, MakeLoadSample make_load_sample,
                       std::unique_ptr<EpochSampler> sampler, const DataLoaderOptions& options) {
  constexpr int kMostWorkers = 1024;
  if (options.batch_size == 0 || options.workers < 0 || options.workers > kMostWorkers ||
      options.prefetch_factor < 1 || options.timeout.count() <= 0) {
    throw UsageError(fmt::format(
        "DataLoader: batch_size is {}, workers {}, prefetch_factor {} and timeout {} ms; give a "
        "positive batch_size, prefetch_factor and timeout, and 0 to {} workers",
        options.batch_size, options.workers, options.prefetch_factor, options.timeout.count(),
        kMostWorkers));
  }
  source_ = std::make_shared<Source>(
      Source{size, std::move(make_load_sample), std::move(sampler), options});
  require_device(options.device);
  source_->options.device = with_index(options.device);
}

DataLoader::Iterator DataLoader::begin() {
  source_->sampler->reset();
  return Iterator([loop = std::make_shared<Loop>(source_)] { return loop->next(); });
}

std::size_t DataLoader::batches_per_epoch() const {
  const std::size_t batch = source_->options.batch_size;
  return (source_->sampler->size() + batch - 1) / batch;
}

std::size_t DataLoader::batch_size() const {
  return source_->options.batch_size;
}

}  // namespace lockstep
