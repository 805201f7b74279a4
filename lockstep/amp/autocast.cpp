// SPDX-License-Identifier: BSD-3-Clause
// Sets libtorch's autocast state, which belongs to the thread.
#include "lockstep/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

constexpr const char* kAutocast = "Autocast";

at::ScalarType& type_for(at::DeviceType device, libtorch::AutocastTypes& types) {
  return device == at::kCPU ? types.cpu : types.cuda;
}

void check_autocast(at::DeviceType device, at::ScalarType type) {
  if (device != at::kCPU && device != at::kCUDA) {
    throw UsageError({.component = kAutocast},
                     fmt::format("there is no autocast for {}",
                                 c10::DeviceTypeName(device, /*lower_case=*/true)),
                     "give cpu or cuda");
  }
  if (type != at::kHalf && type != at::kBFloat16) {
    throw UsageError({.component = kAutocast},
                     fmt::format("converts to float16 (at::kHalf) or bfloat16 "
                                 "(at::kBFloat16), not to {}",
                                 c10::toString(type)),
                     "choose one of the two");
  }
  if (device == at::kCPU && type == at::kHalf && !libtorch::kHasHalfOnCpu) {
    throw UsageError({.component = kAutocast},
                     "this libtorch lacks the kernels for float16 on CPUs",
                     "use bfloat16, or libtorch 2.3 or newer");
  }
}

}  // namespace

Autocast::Autocast(c10::Device device, std::optional<c10::ScalarType> type, bool enabled)
    : device_(device.type()) {
  libtorch::AutocastTypes types = libtorch::autocast_types();
  cpu_type_before_ = types.cpu;
  cuda_type_before_ = types.cuda;
  at::ScalarType& type_of_device = type_for(device_, types);
  if (type) type_of_device = *type;
  if (enabled) check_autocast(device_, type_of_device);
  enabled_before_ = libtorch::is_autocast_enabled(device_);
  libtorch::set_autocast_types(types);
  libtorch::set_autocast_enabled(device_, enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  libtorch::set_autocast_enabled(device_, enabled_before_);
  libtorch::set_autocast_types({cpu_type_before_, cuda_type_before_});
}

}  // namespace lockstep
