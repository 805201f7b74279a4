// SPDX-License-Identifier: BSD-3-Clause
// Public. Distributes samples over the ranks of a group from easy to hard: training starts with the
// easiest samples, and the pool widens until it holds all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

// How the pool's share of the samples grows from start_share at step 0 to 1 at step full_at_step,
// where t is step / full_at_step:
//   linear  start_share + (1 - start_share) t
//   root    sqrt(start_share^2 + (1 - start_share^2) t): the larger the pool, the more
//           rarely each sample is drawn, so samples are added at a decreasing rate (Platanios et
//           al. 2019)
//   steps   start_share^(1 - floor(stages t) / stages): after each stage the pool is larger by the
//           same factor (the fixed exponential pacing of Hacohen and Weinshall 2019)
enum class Pacing { linear, root, steps };

struct CurriculumSamplerOptions {
  // Samples of one step on all ranks together: a multiple of the number of ranks, or with
  // .microbatches of a Trainer, their number times the loader's batch size. Required: it maps
  // samples to steps.
  std::int64_t global_batch_size = 0;
  // From this step on, counted over all epochs, each step draws from all samples. Since the pool's
  // size is rounded up, earlier steps may do so too. Required.
  std::int64_t full_at_step = 0;
  Pacing pacing = Pacing::linear;
  // The pool's share at step 0: above 0 and at most 1, at which the order is DistributedSampler's.
  double start_share = 0.2;
  // The number of stages of Pacing::steps.
  int stages = 5;
  // Must be the same on every rank. seed + epoch determines an epoch's draw.
  std::int64_t seed = 0;
  // Drops the remainder that does not divide evenly among the ranks, instead of padding with the
  // epoch's first samples.
  bool drop_last = false;
};

// Where a training run stands, for a checkpoint; the same on every rank, for any number of ranks.
struct CurriculumState {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  // The samples consumed in this epoch, over all ranks.
  std::int64_t samples_consumed = 0;
  // The options of the sampler, which decide the draw.
  std::int64_t global_batch_size = 0;
  std::int64_t samples = 0;
};

// A curriculum after Bengio et al. 2009, with the scoring and pacing functions of Hacohen and
// Weinshall 2019: step s draws its global batch uniformly, without replacement, from the pool of
// the pool_size(s) samples with the lowest scores. Among equal scores, the lower index comes
// first. Steps are independent of each other while the pool grows, so an epoch may have a sample
// several times, or not at all.
//
// An epoch has the number of samples of the data set. Step s of epoch e has the number
// e * ceil(size / global_batch_size) + s. Its samples are the same for any number of ranks, each on
// one rank only; the padding of an epoch's last step is the exception, as in DistributedSampler.
// From the step that completes the pool to the end of its epoch, no sample is repeated. Each later
// epoch is exactly DistributedSampler's with the same seed: every sample once.
//
// Under DataParallel, use it as for a group of one.
class CurriculumSampler : public EpochSampler {
 public:
  // Makes the sampler of this rank of the group, which it does not keep alive. scores: [N], one
  // for each sample, lower for easier samples, of any real type on any device. They must be the
  // same on every rank, bit for bit: compute them on one rank and broadcast them. They may be
  // infinite. They are not kept. UsageError if there is not one for each sample, if one is NaN, or
  // for options outside their range.
  CurriculumSampler(DatasetSize dataset, const at::Tensor& scores, GroupArgument group,
                    const CurriculumSamplerOptions& options);
  // Makes the sampler of rank `rank` of `num_replicas`. UsageError unless 0 <= rank < num_replicas.
  CurriculumSampler(DatasetSize dataset, const at::Tensor& scores, int num_replicas, int rank,
                    const CurriculumSamplerOptions& options);

  // The number of samples from which a step draws: the pacing function's share of them, but at
  // least a global batch, so that the ranks' samples differ. `step` counts over all epochs.
  std::size_t pool_size(std::int64_t step) const;

  // Returns the state after `steps` steps of the current epoch. Training counts them: a loader may
  // have drawn more batches in advance. UsageError if the epoch has fewer steps.
  CurriculumState state_after(std::int64_t steps) const;
  // Sets the epoch. The next reset() of this sampler or of one of its copies, which a loader calls
  // in begin(), then starts at the state's sample, if the epoch is still the same. Any number of
  // ranks may have trained before. The order of the scores, full_at_step, pacing, start_share and
  // stages must be the same as in the sampler that made the state; this cannot be checked, and
  // other values draw other samples. UsageError if the state has another seed, global_batch_size or
  // number of samples, or its consumed samples are not whole steps.
  void resume(const CurriculumState& state);
  // Resumes from a cursor, which does not know the global batch size.
  void resume(const DataCursor& cursor) override;

  std::string description() const override;
  // EpochSampler::reset(). UsageError if a new size is not the number of scores, or the global
  // batch cannot be divided evenly among the ranks.
  void reset(c10::optional<std::size_t> new_size = c10::nullopt) override;
  // EpochSampler::next(). UsageError unless batch_size is this rank's part of the global batch, or
  // microbatches are dealt.
  c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // Saves this copy's CurriculumState, or the state at which its next reset() starts. load()
  // resumes there: in this copy at once, and in a loader's copy at begin(), unless this copy draws
  // a batch first.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // UsageError unless the microbatches together are a global batch.
  void deal_microbatches(const std::optional<MicrobatchPlan>& plan) override;

 private:
  // The state that all copies share.
  struct Resumption;

  std::vector<std::size_t> order(std::size_t size, std::int64_t epoch) const override;
  std::int64_t steps_per_epoch() const;
  // The samples of one step on this rank.
  std::size_t own_batch_size() const;

  // The samples from easy to hard.
  std::shared_ptr<const std::vector<std::size_t>> by_score_;
  CurriculumSamplerOptions options_;
  std::shared_ptr<Resumption> resumption_;
  // The epoch that next() draws from; empty before the first reset().
  std::optional<std::int64_t> running_epoch_;
  // The number of steps of the running epoch that next() has returned.
  std::int64_t steps_given_ = 0;
  // Whether load() has set the position, and next() has not been called since.
  bool loaded_ = false;
};

}  // namespace lockstep
