// SPDX-License-Identifier: BSD-3-Clause
// Public. The base of DistributedSampler, DistributedWeightedSampler and CurriculumSampler: deals
// the samples of each epoch to the ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/data/samplers/base.h>

#include "lockstep/core/error.h"

namespace lockstep {

struct MicrobatchPlan;

// UsageError of the component `component` unless 0 <= rank < num_replicas.
void require_rank(const char* component, int num_replicas, int rank);

// How an order's positions are distributed over ranks: rank r takes positions r, r + ranks, r + 2
// ranks, and so on, and all ranks take the same number. If the size is not a multiple of the ranks,
// positions from the front are repeated as often as needed (padding); with drop_last the remainder
// is dropped instead. If the first position is not 0, the distribution starts there.
struct RankShare {
  std::size_t size = 0;
  int ranks = 1;
  int rank = 0;
  bool drop_last = false;
  // The first position that is distributed; the positions before it have been taken.
  std::size_t first = 0;

  // The number of samples that each rank takes.
  std::size_t count() const;
  // The number of this rank's samples before its padding. Summed over all ranks: size - first, or
  // ranks * count() with drop_last.
  std::size_t unpadded_count() const;
  // The position, below size, of this rank's i-th sample.
  std::size_t position(std::size_t i) const;
};

// Where a training run stands in its data, for a checkpoint: the same on every rank, and for any
// number of ranks.
struct DataCursor {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  // The samples consumed in this epoch, over all ranks.
  std::int64_t samples_consumed = 0;
  // The samples of one epoch, over all ranks.
  std::int64_t samples = 0;
};

// A sampler for torch::data::make_data_loader and MemoryLoader, which copy it. Copies share the
// epoch, so set_epoch on the original reaches the loader's copy; each copy has its own position.
// set_epoch may be called from any thread, everything else from one thread per copy.
class EpochSampler : public torch::data::samplers::Sampler<> {
 public:
  // Sets the epoch, which determines the order; without this call every epoch has the same one.
  // Takes effect at the next reset(), which a loader calls in begin().
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_->number; }

  // Returns the cursor after `samples_consumed` samples of the current epoch. Training counts them:
  // a loader may have drawn more in advance.
  DataCursor cursor_after(std::int64_t samples_consumed) const;
  // Sets the epoch. Until the next set_epoch, reset() starts at the cursor's sample. The number of
  // ranks may differ from before; if it does not, each rank sees the samples that it would have
  // seen without the interruption. UsageError if the cursor has another seed or number of samples,
  // or more samples consumed than an epoch has.
  virtual void resume(const DataCursor& cursor);

  // Returns everything that decides the order of the samples, for comparison between ranks, such as
  // "DistributedSampler of 60000 samples over 2 ranks, seed 0".
  virtual std::string description() const;

  // The rank whose samples these are, and the number of ranks that share the data set.
  int rank() const { return share_.rank; }
  int num_replicas() const { return share_.ranks; }

  // The number of this rank's samples in a whole epoch, padding included; the same on every rank.
  std::size_t size() const { return share_.count(); }

  // The number of this rank's samples in an epoch before its padding. An evaluation that counts
  // only these counts every sample once; the rest repeat samples that another rank counts.
  std::size_t unpadded_size() const { return share_.unpadded_count(); }

  // Returns this rank's samples in the current epoch, in order, from the cursor on. Does not move
  // the position.
  std::vector<std::size_t> indices() const;

  // Starts the current epoch from the beginning, or from the cursor; a new size replaces the data
  // set's size. On rank 0, warns through TORCH_WARN_ONCE if a complete random epoch is repeated
  // without set_epoch.
  void reset(c10::optional<std::size_t> new_size = c10::nullopt) override;

  // Returns the next batch_size samples, fewer at the end, then nullopt. UsageError if batch_size
  // is 0.
  c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Saves and loads the current epoch and this rank's position in it. UsageError for a position
  // that this sampler does not have, and while it deals microbatches.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Internal: what a Trainer with .microbatches uses. From the next reset() on, this sampler and
  // its copies deal microbatches (microbatch_plan.h): next() returns the samples of this rank's
  // next microbatch that is not empty, indices() all that are left, and no sample is repeated as
  // padding. nullopt ends that. Call it between loops. UsageError for a plan that this sampler
  // cannot deal.
  virtual void deal_microbatches(const std::optional<MicrobatchPlan>& plan);

 protected:
  // `name` is a literal, used in errors. `seed` is empty if the order is the same in every epoch.
  // UsageError unless 0 <= share.rank < share.ranks.
  EpochSampler(const char* name, const RankShare& share, std::optional<std::int64_t> seed);

  // UsageError if the cursor belongs to another sampler.
  void check(const DataCursor& cursor) const;

  bool deals_microbatches() const { return epoch_->plan != nullptr; }
  // UsageError while microbatches are dealt: `what`, such as "save()", does not know them.
  void refuse_while_dealing_microbatches(const char* what) const;

  // The context of this sampler's errors.
  ErrorContext context() const {
    return {.component = name_, .rank = share_.rank, .size = share_.ranks};
  }

 private:
  struct Epoch {
    std::atomic<std::int64_t> number = 0;
    // The number of samples, over all ranks, that this epoch skips.
    std::atomic<std::size_t> consumed = 0;
    // Counts the calls of set_epoch.
    std::atomic<std::uint64_t> times_set = 0;
    // Null unless microbatches are dealt.
    std::shared_ptr<const MicrobatchPlan> plan;
  };

  // The `size` samples of an epoch over all ranks, in order; the same on every rank.
  virtual std::vector<std::size_t> order(std::size_t size, std::int64_t epoch) const = 0;

  std::vector<std::size_t> indices_of(std::int64_t epoch, std::size_t consumed) const;
  std::vector<std::size_t> microbatch_sizes(std::size_t consumed) const;
  void warn_if_order_repeats() const;

  const char* name_;
  RankShare share_;
  std::optional<std::int64_t> seed_;
  std::shared_ptr<Epoch> epoch_;
  // The epoch of indices_, once started_.
  std::int64_t running_epoch_ = 0;
  bool started_ = false;
  // Whether next() has returned the running epoch's last sample.
  bool completed_ = false;
  // Epoch::times_set when the running epoch began.
  std::uint64_t times_set_ = 0;
  std::vector<std::size_t> indices_;
  std::size_t position_ = 0;
  // The number of samples that the running epoch has skipped.
  std::size_t consumed_ = 0;
  // The sizes of this rank's microbatches in the running epoch, the empty ones left out, and the
  // number that next() has returned. Empty unless microbatches are dealt.
  std::vector<std::size_t> microbatch_sizes_;
  std::size_t microbatches_given_ = 0;
};

}  // namespace lockstep
