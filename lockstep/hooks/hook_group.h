// SPDX-License-Identifier: BSD-3-Clause
// The group of a ready-made communication hook.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/comm_hook.h"

namespace lockstep {

class HookGroup {
 public:
  // `hook` is the hook's name, for errors, and outlives this object. UsageError for a null group.
  HookGroup(std::string_view hook, const GroupArgument& group);

  // UsageError if the reducer's group has another size.
  ProcessGroup& for_bucket(const GradBucket& bucket) const;

 private:
  std::string_view hook_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace lockstep
