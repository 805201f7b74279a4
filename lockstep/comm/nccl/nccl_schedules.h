// SPDX-License-Identifier: BSD-3-Clause
// The stages of each collective on GPUs, which NCCL does as a whole: it sums in an order of its
// own, and rounds half types at each addition.
#pragma once

#include "lockstep/comm/remote/schedules.h"

namespace lockstep {

// For a group whose transport is an NcclTransport on that device.
remote::Schedules nccl_schedules(at::Device device);

}  // namespace lockstep
