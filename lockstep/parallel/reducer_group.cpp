// SPDX-License-Identifier: BSD-3-Clause
// Keeps the first failure, and adds to messages where and why it happened.
#include "lockstep/parallel/reducer_group.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/rethrow.h"

namespace lockstep {

std::string ReducerGroup::where() const {
  return fmt::format("[reducer] rank {} of {}: ", group_->rank(), group_->size());
}

void ReducerGroup::require_usable() const {
  if (failure_.empty()) return;
  throw Error(where() + "an earlier backward failed and ended the group: " + failure_ +
              ". Form a new group and wrap the model again, or start the job anew");
}

void ReducerGroup::refuse(const std::string& reason) {
  failure_ = reason;
  throw UsageError(where() + reason);
}

void ReducerGroup::rethrow(const std::exception& error) {
  const bool refused_here = !failure_.empty();
  end(error.what());
  if (refused_here) throw;
  const std::string before = where() + "reducing gradients: ";
  if (announces_) rethrow_with(before);
  rethrow_with_hint_at_batches(before);
}

void ReducerGroup::end(const std::string& reason) noexcept {
  try {
    if (failure_.empty()) failure_ = reason;
    group_->abort(where() + failure_);
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
