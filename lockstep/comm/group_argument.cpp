// SPDX-License-Identifier: BSD-3-Clause
// Refuses groups that nobody owns.
#include "lockstep/comm/group_argument.h"

#include "lockstep/core/error.h"

namespace lockstep {

GroupArgument::GroupArgument(ProcessGroup& group) : group_(group.weak_from_this().lock()) {
  if (!group_)
    throw UsageError("no std::shared_ptr owns the group; make it with init_process_group()");
}

ProcessGroup& GroupArgument::get() const {
  if (!group_) throw UsageError("the group is null; call init_process_group()");
  return *group_;
}

}  // namespace lockstep
