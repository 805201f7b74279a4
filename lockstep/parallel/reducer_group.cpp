// SPDX-License-Identifier: BSD-3-Clause
// Keeps the first failure, and adds to messages where and why it happened.
#include "lockstep/parallel/reducer_group.h"

#include "lockstep/core/error.h"

namespace lockstep {

ErrorContext ReducerGroup::context(const std::string& operation) const {
  return group_->context("reducer", operation);
}

void ReducerGroup::require_usable() const {
  if (failure_.empty()) return;
  throw Error(context(), "an earlier backward failed and ended the group: " + failure_,
              "form a new group and wrap the model again, or start the job again");
}

void ReducerGroup::refuse(const std::string& cause, const std::string& remedy) {
  failure_ = cause;
  throw UsageError(context(), cause, remedy);
}

void ReducerGroup::rethrow(const std::exception& error) {
  const bool refused_here = !failure_.empty();
  end(short_message(error));
  if (refused_here) throw;
  if (announces_) rethrow_within(context(kReducingGradients));
  rethrow_within_batches(context(kReducingGradients));
}

void ReducerGroup::end(const std::string& reason) noexcept {
  try {
    if (failure_.empty()) failure_ = reason;
    group_->abort(failure_);
  } catch (...) {
    // Then the peers notice when this rank leaves the group, or at their deadline.
  }
}

AnnouncedStep ReducerGroup::announce(JoinStep mine) {
  if (!announces_) return {};
  const AnnouncedStep next = announce_step(*group_, mine);
  if (next.step != JoinStep::none) root_ = next.root;
  return next;
}

}  // namespace lockstep
