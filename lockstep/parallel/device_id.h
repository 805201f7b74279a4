// SPDX-License-Identifier: BSD-3-Clause
// A device in a list of options: a torch::Device, or a GPU's number as in PyTorch's device_ids.
#pragma once

#include <c10/core/Device.h>

namespace lockstep {

class DeviceId {
 public:
  // The GPU of this number; DataParallel and DistributedDataParallel refuse one that is not there.
  DeviceId(int gpu) : device_(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu)) {}
  DeviceId(c10::Device device) : device_(device) {}
  DeviceId(c10::DeviceType type) : device_(type) {}

  operator c10::Device() const { return device_; }

 private:
  c10::Device device_;
};

}  // namespace lockstep
