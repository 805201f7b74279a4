// SPDX-License-Identifier: BSD-3-Clause
// Public. A process group as an argument.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"

namespace lockstep {

// Takes both `group`, a std::shared_ptr, and `*group`, and keeps the group alive.
class GroupArgument {
 public:
  GroupArgument(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  GroupArgument(std::nullptr_t) {}
  // UsageError unless a std::shared_ptr owns the group, as it does after init_process_group.
  GroupArgument(ProcessGroup& group) : group_(group.weak_from_this().lock()) {
    if (group_) return;
    throw UsageError("no std::shared_ptr owns the group; make it with init_process_group()");
  }

  // UsageError if the pointer is null.
  ProcessGroup& get() const {
    if (group_) return *group_;
    throw UsageError("the group is null; call init_process_group()");
  }
  // May be null.
  std::shared_ptr<ProcessGroup> shared() const { return group_; }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace lockstep
