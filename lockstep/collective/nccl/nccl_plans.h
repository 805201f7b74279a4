// SPDX-License-Identifier: BSD-3-Clause
// The steps of each collective on GPUs, which NCCL does as a whole: it sums in an order of its own,
// and rounds half types at each addition.
#pragma once

#include "lockstep/collective/network/plans.h"

namespace lockstep {

// For a group whose carrier is an NcclCarrier on that device.
network::Plans nccl_plans(at::Device device);

}  // namespace lockstep
