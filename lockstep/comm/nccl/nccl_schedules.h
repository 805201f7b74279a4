// SPDX-License-Identifier: BSD-3-Clause
// The stages of each collective on GPUs. NCCL carries out a collective as a whole: it sums in an
// order of its own, and rounds half types at each addition.
#pragma once

#include <vector>

#include "lockstep/comm/remote/schedules.h"

namespace lockstep::nccl {

// For a backend whose transport is an NcclTransport. UsageError for types that NCCL cannot reduce.
std::vector<remote::SchedulePtr> schedule_nccl(const CollectiveArgs& args,
                                               remote::Position position);

}  // namespace lockstep::nccl
