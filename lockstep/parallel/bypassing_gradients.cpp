// SPDX-License-Identifier: BSD-3-Clause
// What becomes of gradients that reach parameters around the wrapper's outputs: a penalty in a
// backward of its own, a loss that the module keeps, a forward of the module itself.
#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/parallel/backward_reduction.h"

namespace lockstep {
namespace {

constexpr const char* kRemedy =
    "Compute each loss from the outputs of the wrapper, or after a call of the wrapper in the same "
    "step. To keep gradients on this rank only, hold no_sync() during that backward, or set "
    "requires_grad to false";

}  // namespace

class BackwardReduction::UnsynchronizedEntry final : public BackwardListener {
 public:
  explicit UnsynchronizedEntry(std::weak_ptr<BackwardReduction> reduction)
      : reduction_(std::move(reduction)) {}

  void backward_entered() override {
    const auto reduction = reduction_.lock();
    if (!reduction || reduction->accumulates_nothing()) return;
    const std::lock_guard lock(reduction->mutex_);
    if (std::exchange(reduction->unsynchronized_, true)) return;
    reduction->at_end_of_backward(&BackwardReduction::end_unsynchronized,
                                  &BackwardReduction::end_unsynchronized);
  }

 private:
  std::weak_ptr<BackwardReduction> reduction_;
};

const std::shared_ptr<BackwardListener>& BackwardReduction::unsynchronized_entry() {
  if (!unsynchronized_entry_) {
    unsynchronized_entry_ = std::make_shared<UnsynchronizedEntry>(weak_from_this());
  }
  return unsynchronized_entry_;
}

BackwardReduction::Snapshot BackwardReduction::snapshot_of(const at::Tensor& parameter) {
  Snapshot snapshot{.version =
                        parameter.unsafeGetTensorImpl()->version_counter().current_version()};
  if (parameter.is_cpu() && parameter.numel() > 0 && parameter.is_non_overlapping_and_dense()) {
    std::memcpy(snapshot.values.data(), parameter.data_ptr(),
                std::min(parameter.nbytes(), snapshot.values.size()));
  }
  return snapshot;
}

void BackwardReduction::expect_backwards() {
  std::int64_t changes = 0;
  bool any_uncounted = false;
  for (Parameter& parameter : parameters_) {
    const Snapshot now = snapshot_of(parameter.tensor);
    changes += now.version;
    any_uncounted |=
        now.version == parameter.at_forward.version && now.values != parameter.at_forward.values;
    parameter.at_forward = now;
  }
  updates_.set(changes, any_uncounted);
}

bool BackwardReduction::is_reducing() {
  const std::lock_guard lock(mutex_);
  return active_ || reduces_at_end_;
}

// The forward that led here is one of this step, as long as the parameters have not changed since.
// Ranks run the same program, so all of them reduce, or none. They do so at the end: a parameter
// may also be in another wrapper that reduces it now, and an inner backward may end before the one
// that contains it. The mean of what was a mean already and of what has been added to it is the
// mean of the sums.
void BackwardReduction::bypassed_outputs(Parameter& parameter) {
  if (parameter.hooks.is_reduced_elsewhere(*this)) return;
  const std::lock_guard lock(mutex_);
  if (unsynchronized_ || reduces_at_end_ || *no_sync_depth_ > 0) return;
  const Snapshot now = snapshot_of(parameter.tensor);
  // Ranks without batches left could not tell such a reduction from another step.
  if (parameter.at_forward == now && !announces_) {
    refuse_create_graph();
    if (!failure_.empty()) check();
    require_owner_of_shares();
    reduces_at_end_ = true;
    at_end_of_backward(&BackwardReduction::finish_bypass, &BackwardReduction::backward_failed);
    return;
  }
  if (group_->size() == 1) return;
  if (parameter.at_bypass.version >= 0 && parameter.at_bypass != now) refuse_update(parameter);
  parameter.at_bypass = now;
  any_bypassed_ = true;
}

void BackwardReduction::finish_bypass() {
  reduces_at_end_ = false;
  if (active_) return;  // it has entered through an output as well
  begin();
  finish();
}

void BackwardReduction::refuse_updates_without_reduction() const {
  if (!any_bypassed_) return;
  for (const Parameter& parameter : parameters_) {
    if (parameter.at_bypass.version < 0) continue;
    if (parameter.at_bypass != snapshot_of(parameter.tensor)) refuse_update(parameter);
  }
}

void BackwardReduction::refuse_update(const Parameter& parameter) const {
  throw UsageError(where() + "parameter " + parameter.name +
                   " has changed after a backward that computed its gradient on this rank only, "
                   "since it did not start from an output of the wrapped model. The ranks' "
                   "parameters may differ now. " +
                   kRemedy);
}

void BackwardReduction::require_reduced(const std::string& who) const {
  if (!any_bypassed_) return;
  for (const Parameter& parameter : parameters_) {
    if (parameter.at_bypass.version < 0 || !parameter.tensor.grad().defined()) continue;
    throw UsageError(who + "the gradient of " + parameter.name +
                     " has parts that were not reduced, since their backward did not start from an "
                     "output of the wrapped model. " +
                     kRemedy);
  }
}

}  // namespace lockstep
