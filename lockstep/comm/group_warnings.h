// SPDX-License-Identifier: BSD-3-Clause
// Warnings about groups that work, but likely not as intended. By TORCH_WARN, each at most once in
// a process.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// For an unrequested group of one on a terminal: no launcher started this process, and it may use
// several cores or GPUs. `device` is the group's.
void warn_of_group_of_one(at::Device device);

// After the roll call: the machine's lowest rank warns if the machine's ranks outnumber the cores
// that they may use together. Silent if `lockstep run` or spawn started all of them, since those
// warn themselves.
void warn_of_oversubscription(const Membership& member);

// The same for ranks that are threads of this process.
void warn_of_oversubscription(int threads);

}  // namespace lockstep
