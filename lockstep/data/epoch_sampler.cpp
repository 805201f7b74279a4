// SPDX-License-Identifier: BSD-3-Clause
// A sampler's position in an epoch, and how it is saved and loaded.
#include "lockstep/data/epoch_sampler.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include "lockstep/core/error.h"

namespace lockstep {

EpochSampler::EpochSampler(const char* name, const RankShare& share, bool random)
    : name_(name), share_(share), random_(random), epoch_(std::make_shared<Epoch>()) {
  require_rank(name, share.ranks, share.rank);
}

void EpochSampler::set_epoch(std::int64_t epoch) {
  epoch_->number = epoch;
  ++epoch_->times_set;
}

std::vector<std::size_t> EpochSampler::indices_of(std::int64_t epoch) const {
  const auto whole = order(share_.size, epoch);
  std::vector<std::size_t> indices(share_.count());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = whole[share_.position(i)];
  return indices;
}

std::vector<std::size_t> EpochSampler::indices() const {
  return indices_of(epoch());
}

// A loop that ended early may repeat its epoch on purpose. All ranks repeat theirs together: one
// warns.
void EpochSampler::warn_if_order_repeats() const {
  if (!random_ || share_.rank != 0 || !completed_ || epoch_->times_set != times_set_) return;
  TORCH_WARN_ONCE(
      fmt::format("{}, rank {} of {}: set_epoch was not called since the last epoch, so this epoch "
                  "has the same order; call sampler.set_epoch(epoch) before each epoch",
                  name_, share_.rank, share_.ranks));
}

void EpochSampler::reset(c10::optional<std::size_t> new_size) {
  warn_if_order_repeats();
  if (new_size) share_.size = *new_size;
  position_ = 0;
  times_set_ = epoch_->times_set;
  running_epoch_ = epoch();
  started_ = true;
  completed_ = false;
  indices_ = indices_of(running_epoch_);
}

c10::optional<std::vector<std::size_t>> EpochSampler::next(std::size_t batch_size) {
  if (batch_size == 0) {
    throw UsageError(fmt::format(
        "{}, rank {} of {}: a batch of 0 samples was asked for; use a batch size of at least 1",
        name_, share_.rank, share_.ranks));
  }
  if (!started_) reset();
  if (position_ == indices_.size()) return c10::nullopt;
  const std::size_t count = std::min(batch_size, indices_.size() - position_);
  const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ += count;
  completed_ = position_ == indices_.size();
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void EpochSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", c10::IValue(started_ ? running_epoch_ : epoch()));
  archive.write("position", c10::IValue(static_cast<std::int64_t>(position_)));
}

void EpochSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  c10::IValue position;
  archive.read("epoch", epoch);
  archive.read("position", position);
  const auto at = static_cast<std::size_t>(position.toInt());
  if (position.toInt() < 0 || at > share_.count()) {
    throw UsageError(
        fmt::format("{}, rank {} of {}: the saved position {} lies outside this rank's {} samples; "
                    "load it with the data set and the number of ranks that it was saved with",
                    name_, share_.rank, share_.ranks, position.toInt(), share_.count()));
  }
  set_epoch(epoch.toInt());
  reset();
  position_ = at;
}

}  // namespace lockstep
