// SPDX-License-Identifier: BSD-3-Clause
// A sampler's position in an epoch, and how it is saved and loaded.
#include "lockstep/data/epoch_sampler.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include "lockstep/data/microbatch_plan.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

// Calls the function with the position of the first sample and the size of each microbatch of the
// plan's run that is not empty, from sample `consumed` of `samples` samples on.
template <class Function>
void for_each_own_microbatch(const MicrobatchPlan& plan, std::int64_t consumed,
                             std::int64_t samples, const Function& function) {
  for (std::int64_t first = consumed; first < samples; first += plan.global_batch_size()) {
    const std::int64_t in_step = plan.samples_of_step(first, samples);
    for (std::int64_t index = plan.run.begin; index < plan.run.end; ++index) {
      const std::int64_t size = plan.size_of(index, in_step);
      if (size > 0) function(first + plan.begin_of(index, in_step), size);
    }
  }
}

}  // namespace

void require_rank(const char* component, int num_replicas, int rank) {
  if (num_replicas >= 1 && rank >= 0 && rank < num_replicas) return;
  throw UsageError({.component = component},
                   fmt::format("rank {} of {} replicas does not exist", rank, num_replicas),
                   "give num_replicas >= 1 and 0 <= rank < num_replicas");
}

std::size_t RankShare::count() const {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t rest = size - first;
  return drop_last ? rest / n : rest / n + (rest % n != 0 ? 1 : 0);
}

std::size_t RankShare::unpadded_count() const {
  if (drop_last) return count();
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t rest = size - first;
  return rest / n + (static_cast<std::size_t>(rank) < rest % n ? 1 : 0);
}

std::size_t RankShare::position(std::size_t i) const {
  return (first + static_cast<std::size_t>(rank) + i * static_cast<std::size_t>(ranks)) % size;
}

EpochSampler::EpochSampler(const char* name, const RankShare& share,
                           std::optional<std::int64_t> seed)
    : name_(name), share_(share), seed_(seed), epoch_(std::make_shared<Epoch>()) {
  require_rank(name, share.ranks, share.rank);
}

void EpochSampler::set_epoch(std::int64_t epoch) {
  epoch_->number = epoch;
  epoch_->consumed = 0;
  ++epoch_->times_set;
}

DataCursor EpochSampler::cursor_after(std::int64_t samples_consumed) const {
  return {.seed = seed_.value_or(0),
          .epoch = epoch(),
          .samples_consumed = samples_consumed,
          .samples = static_cast<std::int64_t>(share_.size)};
}

std::string EpochSampler::description() const {
  // Microbatches are dealt without regard to the ranks that the sampler was made for.
  return fmt::format("{} of {} samples {}, {}{}", name_, share_.size,
                     epoch_->plan ? "in microbatches" : fmt::format("over {} ranks", share_.ranks),
                     seed_ ? fmt::format("seed {}", *seed_) : "always in one order",
                     share_.drop_last ? ", drop_last" : "");
}

void EpochSampler::check(const DataCursor& cursor) const {
  const auto require_same = [&](const char* what, std::int64_t of_cursor, std::int64_t own,
                                const std::string& remedy) {
    if (of_cursor == own) return;
    throw UsageError(
        context(),
        fmt::format("the checkpoint's {} is {}, but the sampler's is {}", what, of_cursor, own),
        remedy);
  };
  const DataCursor own = cursor_after(0);
  require_same("seed", cursor.seed, own.seed, fmt::format("use the seed {}", cursor.seed));
  require_same("number of samples", cursor.samples, own.samples,
               "use the data that the checkpoint was trained on");
  if (cursor.epoch >= 0 && cursor.samples_consumed >= 0 &&
      cursor.samples_consumed <= cursor.samples) {
    return;
  }
  throw UsageError(context(),
                   fmt::format("a cursor at sample {} of {} of epoch {}", cursor.samples_consumed,
                               cursor.samples, cursor.epoch),
                   "give one that cursor_after() made");
}

void EpochSampler::resume(const DataCursor& cursor) {
  check(cursor);
  set_epoch(cursor.epoch);
  epoch_->consumed = static_cast<std::size_t>(cursor.samples_consumed);
}

void EpochSampler::deal_microbatches(const std::optional<MicrobatchPlan>& plan) {
  if (plan && share_.drop_last) {
    throw UsageError(context(), "microbatches are dealt without padding, so nothing is dropped",
                     "leave out .drop_last");
  }
  epoch_->plan = plan ? std::make_shared<const MicrobatchPlan>(*plan) : nullptr;
}

void EpochSampler::refuse_while_dealing_microbatches(const char* what) const {
  if (!deals_microbatches()) return;
  throw UsageError(context(), fmt::format("{} does not know microbatches", what),
                   "save cursor_after(samples), and resume() from it");
}

std::vector<std::size_t> EpochSampler::microbatch_sizes(std::size_t consumed) const {
  std::vector<std::size_t> sizes;
  if (!epoch_->plan) return sizes;
  for_each_own_microbatch(
      *epoch_->plan, static_cast<std::int64_t>(consumed), static_cast<std::int64_t>(share_.size),
      [&](std::int64_t, std::int64_t size) { sizes.push_back(static_cast<std::size_t>(size)); });
  return sizes;
}

std::vector<std::size_t> EpochSampler::indices_of(std::int64_t epoch, std::size_t consumed) const {
  const auto whole = order(share_.size, epoch);
  if (epoch_->plan) {
    std::vector<std::size_t> own;
    for_each_own_microbatch(*epoch_->plan, static_cast<std::int64_t>(consumed),
                            static_cast<std::int64_t>(share_.size),
                            [&](std::int64_t begin, std::int64_t size) {
                              const auto first = whole.begin() + begin;
                              own.insert(own.end(), first, first + size);
                            });
    return own;
  }
  RankShare rest = share_;
  rest.first = std::min(consumed, share_.size);
  std::vector<std::size_t> indices(rest.count());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = whole[rest.position(i)];
  return indices;
}

std::vector<std::size_t> EpochSampler::indices() const {
  return indices_of(epoch(), epoch_->consumed);
}

// A loop that ended early may repeat its epoch on purpose. All ranks repeat their epochs together,
// so only rank 0 warns.
void EpochSampler::warn_if_order_repeats() const {
  if (!seed_ || share_.rank != 0 || !completed_ || epoch_->times_set != times_set_) return;
  static std::atomic_flag warned;
  libtorch::warn_once(
      warned, "reset",
      context().prefix() +
          "set_epoch was not called since the last epoch, so this epoch has the same order; call "
          "sampler.set_epoch(epoch) before each epoch");
}

void EpochSampler::reset(c10::optional<std::size_t> new_size) {
  warn_if_order_repeats();
  if (new_size) share_.size = *new_size;
  position_ = 0;
  times_set_ = epoch_->times_set;
  running_epoch_ = epoch();
  started_ = true;
  completed_ = false;
  consumed_ = epoch_->consumed;
  indices_ = indices_of(running_epoch_, consumed_);
  microbatch_sizes_ = microbatch_sizes(consumed_);
  microbatches_given_ = 0;
}

c10::optional<std::vector<std::size_t>> EpochSampler::next(std::size_t batch_size) {
  if (batch_size == 0) {
    throw UsageError(context(), "a batch of 0 samples was asked for",
                     "use a batch size of at least 1");
  }
  if (!started_) reset();
  if (position_ == indices_.size()) return c10::nullopt;
  std::size_t count = std::min(batch_size, indices_.size() - position_);
  if (!microbatch_sizes_.empty()) count = microbatch_sizes_[microbatches_given_++];
  const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ += count;
  completed_ = position_ == indices_.size();
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void EpochSampler::save(torch::serialize::OutputArchive& archive) const {
  refuse_while_dealing_microbatches("save()");
  archive.write("epoch", c10::IValue(started_ ? running_epoch_ : epoch()));
  archive.write("position", c10::IValue(static_cast<std::int64_t>(position_)));
  archive.write("consumed", c10::IValue(static_cast<std::int64_t>(consumed_)));
}

void EpochSampler::load(torch::serialize::InputArchive& archive) {
  refuse_while_dealing_microbatches("load()");
  c10::IValue epoch;
  c10::IValue position;
  c10::IValue consumed(std::int64_t{0});
  archive.read("epoch", epoch);
  archive.read("position", position);
  archive.try_read("consumed", consumed);  // archives of earlier versions have none
  const auto at = static_cast<std::size_t>(position.toInt());
  DataCursor cursor = cursor_after(consumed.toInt());
  cursor.epoch = epoch.toInt();
  check(cursor);
  RankShare rest = share_;
  rest.first = static_cast<std::size_t>(consumed.toInt());
  if (position.toInt() < 0 || at > rest.count()) {
    throw UsageError(context(),
                     fmt::format("the saved position {} lies outside this rank's {} samples",
                                 position.toInt(), rest.count()),
                     "load it with the data set and the number of ranks that it was saved with");
  }
  EpochSampler::resume(cursor);
  EpochSampler::reset();
  position_ = at;
}

}  // namespace lockstep
