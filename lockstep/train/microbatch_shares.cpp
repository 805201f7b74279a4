// SPDX-License-Identifier: BSD-3-Clause
// Measures this rank's steps, and changes the runs of all.
#include "lockstep/train/microbatch_shares.h"

#include <utility>

#include <ATen/ATen.h>

#include "lockstep/core/error.h"

namespace lockstep {

MicrobatchShares::MicrobatchShares(const TrainerOptions& options, ProcessGroup& group)
    : group_(group),
      tree_(options.microbatches),
      runs_(even_runs(options.microbatches, group.size())) {
  if (options.balance_load && group.size() > 1 && options.microbatches > group.size()) {
    meter_.emplace();
  }
}

MicrobatchPlan MicrobatchShares::plan(std::int64_t size) const {
  return {.microbatches = tree_.leaves(),
          .size = size,
          .run = runs_[static_cast<std::size_t>(group_.rank())]};
}

void MicrobatchShares::renew_memory(const GradientLayout& layout) {
  if (!memory_.empty() && memory_.size() >= tree_.most_subtrees(runs_) &&
      memory_.front().numel() == layout.elements() &&
      memory_.front().scalar_type() == c10::typeMetaToScalarType(layout.options().dtype())) {
    return;
  }
  memory_ = partial_memory(tree_, runs_, layout.elements(), layout.options(), group_);
}

void MicrobatchShares::begin(LoadMeter::Activity activity) {
  if (meter_) meter_->begin(activity);
}

void MicrobatchShares::forget_step() {
  if (meter_) meter_->forget_step();
}

// Only whole global batches count, whose microbatches are all of one size.
void MicrobatchShares::send_load(const GradientLayout& layout, const at::Tensor& partial,
                                 std::size_t microbatches, bool is_whole) {
  if (!meter_) return;
  if (!partial.device().is_cpu()) {
    meter_->begin(LoadMeter::Activity::computing);
    layout.loss_in(partial).item<double>();  // waits for the device
  }
  meter_->begin(LoadMeter::Activity::other);
  if (is_whole) {
    meter_->end_microbatches(microbatches);
  } else {
    meter_->forget_step();
  }
  layout.set_load(partial, group_.rank(), meter_->load());
  meter_->begin(LoadMeter::Activity::exchange);
}

void MicrobatchShares::end_exchange() {
  if (!meter_) return;
  meter_->begin(LoadMeter::Activity::other);
  meter_->end_exchange();
}

void MicrobatchShares::decide(std::vector<RankLoad> loads) {
  if (!meter_ || !meter_->is_due()) return;
  meter_->clear();
  loads_ = std::move(loads);
  better_runs_ = better_runs(runs_, loads_).value_or(std::vector<LeafRange>());
}

std::optional<std::string> MicrobatchShares::change(const GradientLayout& layout) {
  if (better_runs_.empty()) return std::nullopt;
  const std::vector<LeafRange> before = std::exchange(runs_, std::exchange(better_runs_, {}));
  try {
    renew_memory(layout);
  } catch (const BackendError&) {
    // There is not enough memory, which every rank is told. A step with these shares works.
    runs_ = before;
    return std::nullopt;
  }
  return load_text(runs_, loads_);
}

}  // namespace lockstep
