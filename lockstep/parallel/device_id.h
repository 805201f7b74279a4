// SPDX-License-Identifier: BSD-3-Clause
// A device in a list of options: a torch::Device, or a GPU's number as in PyTorch's device_ids.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "lockstep/core/error.h"

namespace lockstep {

class DeviceId {
 public:
  // The GPU of this number. UsageError unless it is from 0 to 127.
  DeviceId(int gpu);
  DeviceId(c10::Device device) : device_(device) {}
  DeviceId(c10::DeviceType type) : device_(type) {}

  operator c10::Device() const { return device_; }

 private:
  c10::Device device_;
};

inline DeviceId::DeviceId(int gpu) : device_(c10::kCUDA) {
  if (gpu < 0 || gpu > 127) {
    throw UsageError("device_ids names GPU " + std::to_string(gpu) + "; GPUs are numbered from 0");
  }
  device_.set_index(static_cast<c10::DeviceIndex>(gpu));
}

}  // namespace lockstep
