// SPDX-License-Identifier: BSD-3-Clause
// The group of a ready-made communication hook.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/comm_hook.h"

namespace lockstep {

class HookGroup {
 public:
  // `hook` is the name of the hook, for errors, and outlives this object. UsageError for a null
  // group.
  HookGroup(std::string_view hook, const GroupArgument& group)
      : hook_(hook), group_(group.get().shared_from_this()) {}

  // UsageError if the group of the reducer has another size.
  ProcessGroup& for_bucket(const GradBucket& bucket) const {
    const ProcessGroup& reducers = bucket.group();
    if (group_->size() == reducers.size()) return *group_;
    throw UsageError(
        {.component = std::string(hook_), .rank = reducers.rank(), .size = reducers.size()},
        fmt::format("the hook's group has {} ranks, the model's has {}", group_->size(),
                    reducers.size()),
        "make the hook with the model's group: model->group()");
  }

 private:
  std::string_view hook_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace lockstep
