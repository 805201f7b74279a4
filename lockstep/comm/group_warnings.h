// SPDX-License-Identifier: BSD-3-Clause
// Warnings about groups that work, but likely not as intended. By TORCH_WARN, each at most once in
// a process.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// For an unrequested group of one on a terminal: no launcher started this process, and it may use
// several cores or GPUs. `device` is the group's device.
void warn_of_group_of_one(at::Device device);

// For a process that no launcher started, and whose user has set nothing about OpenMP: idle threads
// of OpenMP spin, and where other programs use the cores they would keep this process's own threads
// from computing. If the cores are in use now, libtorch gets as many threads as cores are idle, at
// least one, for which it looks a tenth of a second. Ranks of a launcher need none of this: it
// gives them their share of the cores and lets idle threads sleep.
void spare_busy_cores();

// After the roll call: the machine's lowest rank warns if the machine's ranks outnumber the cores
// that they may use together. Silent if `lockstep run` or spawn started all of them, since those
// warn themselves.
void warn_of_oversubscription(const Membership& member);

// Warns in the same way about ranks that are threads of this process.
void warn_of_oversubscription(int threads);

}  // namespace lockstep
