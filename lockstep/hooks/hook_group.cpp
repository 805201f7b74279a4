// SPDX-License-Identifier: BSD-3-Clause
// Compares a hook's group with the reducer's.
#include "lockstep/hooks/hook_group.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

HookGroup::HookGroup(std::string_view hook, const GroupArgument& group)
    : hook_(hook), group_(group.get().shared_from_this()) {}

ProcessGroup& HookGroup::for_bucket(const GradBucket& bucket) const {
  const ProcessGroup& reducers = bucket.group();
  if (group_->size() != reducers.size()) {
    throw UsageError(fmt::format(
        "[{}] rank {} of {}: the hook's group has {} ranks, the model's has {}. Make the hook with "
        "the model's group: model->group()",
        hook_, reducers.rank(), reducers.size(), group_->size(), reducers.size()));
  }
  return *group_;
}

}  // namespace lockstep
