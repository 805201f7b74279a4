// SPDX-License-Identifier: BSD-3-Clause
// The phases of all_gather and reduce_scatter, whose tensors have one part for each rank. Between
// hosts, each rank exchanges parts only with the ranks that have its index on the other hosts, so
// that each part crosses to another host once. All hosts must have the same number of ranks.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/hierarchical/hierarchical_operation.h"
#include "lockstep/comm/hierarchical/hierarchy_levels.h"

namespace lockstep::hierarchical {

// Adds the phases to the operation, for each piece of large parts. `call` is the call that ranks
// compare between hosts.
void gather_parts(HierarchicalOperation& operation, const std::shared_ptr<HierarchyLevels>& levels,
                  const Call& call, const CollectiveArgs& args);
// The sums have the bits of an all_reduce of this group.
void reduce_parts(HierarchicalOperation& operation, const std::shared_ptr<HierarchyLevels>& levels,
                  const Call& call, const CollectiveArgs& args);

}  // namespace lockstep::hierarchical
