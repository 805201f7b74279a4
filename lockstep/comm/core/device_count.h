// SPDX-License-Identifier: BSD-3-Clause
// Counts the devices that libtorch can reach in this process.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

// Also 0 if this libtorch was built without support for the type.
inline int device_count(c10::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

}  // namespace lockstep
