// SPDX-License-Identifier: BSD-3-Clause
// Public. Devices of a module, and tensors and arguments of forward that are moved to them.
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/for_each_tensor.h"

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
    throw UsageError("device_ids names GPU " + std::to_string(gpu) +
                     "; give a number from 0 to 127");
  }
  device_.set_index(static_cast<c10::DeviceIndex>(gpu));
}

// Numbers of GPUs, devices, or a vector of either.
class DeviceIds : public std::vector<DeviceId> {
 public:
  using std::vector<DeviceId>::vector;
  template <std::convertible_to<DeviceId> Id>
  DeviceIds(const std::vector<Id>& ids) : std::vector<DeviceId>(ids.begin(), ids.end()) {}
};

// Copies to a GPU do not block: later work on its stream waits for them. Copies to the CPU block,
// since nothing else would wait and the copy could be read too early.
inline at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

// Holds a copy of the argument with its tensors on the device; arguments without tensors, or of
// unknown structure, pass through. get() returns an lvalue or rvalue, as the argument was.
template <class Argument>
class MovedInput {
  using Plain = std::remove_cvref_t<Argument>;
  static constexpr bool kMoves = TensorStructure<Plain> && !detail::WithoutTensors<Plain>;

 public:
  MovedInput(Argument&& argument, at::Device device) : value_(std::forward<Argument>(argument)) {
    if constexpr (kMoves) {
      for_each_tensor(value_, [device](at::Tensor& tensor) {
        if (tensor.defined()) tensor = to_device(tensor, device);
      });
    }
  }

  Argument&& get() { return static_cast<Argument&&>(value_); }

 private:
  std::conditional_t<kMoves, Plain, Argument&&> value_;
};

}  // namespace lockstep
