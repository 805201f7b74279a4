// SPDX-License-Identifier: BSD-3-Clause
// Distributes the samples of a data set over the ranks of a group, like Python's
// torch.utils.data.DistributedSampler: the same arguments give the same indices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <torch/data/samplers/base.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/sample_order.h"

namespace lockstep {

struct DistributedSamplerOptions {
  bool shuffle = true;
  // Must be the same on every rank. seed + epoch determines an epoch's order.
  std::int64_t seed = 0;
  // Drops the remainder that does not divide evenly among the ranks, instead of padding with the
  // first samples.
  bool drop_last = false;
};

// A sampler for torch::data::make_data_loader, which copies it. Copies share the epoch, so
// set_epoch on the original reaches the loader's copy; each copy has its own position. Does not
// keep the group alive. set_epoch may be called from any thread, everything else from one thread
// per copy.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // For this rank of the group.
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     const DistributedSamplerOptions& options = {});
  DistributedSampler(std::size_t size, const std::shared_ptr<ProcessGroup>& group,
                     const DistributedSamplerOptions& options = {});
  // For rank `rank` of `num_replicas`. UsageError unless 0 <= rank < num_replicas.
  DistributedSampler(std::size_t size, int num_replicas, int rank,
                     const DistributedSamplerOptions& options = {});

  // Without this call every epoch has the same order. Takes effect at the next reset(), which a
  // loader calls in begin().
  void set_epoch(std::int64_t epoch) { *epoch_ = epoch; }
  std::int64_t epoch() const { return *epoch_; }

  // The number of this rank's samples in an epoch, padding included; the same on every rank.
  std::size_t size() const { return share_.count(); }

  // How many of this rank's first samples in an epoch are not padding. An evaluation that counts
  // only these counts every sample once; the rest repeat samples that another rank counts.
  std::size_t unpadded_size() const { return share_.unpadded_count(); }

  // This rank's samples in the current epoch, in order. Does not move the position.
  std::vector<std::size_t> indices() const;

  // Starts the current epoch from the beginning; a new size replaces the data set's size.
  void reset(c10::optional<std::size_t> new_size = c10::nullopt) override;

  // The next batch_size samples, fewer at the end, then nullopt. UsageError if batch_size is 0.
  c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // The current epoch and the position in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<std::size_t> indices_of(std::int64_t epoch) const;

  RankShare share_;
  bool shuffle_;
  std::int64_t seed_;
  std::shared_ptr<std::atomic<std::int64_t>> epoch_;
  // The epoch of indices_, once started_.
  std::int64_t running_epoch_ = 0;
  bool started_ = false;
  std::vector<std::size_t> indices_;
  std::size_t position_ = 0;
};

}  // namespace lockstep
