// SPDX-License-Identifier: BSD-3-Clause
// Public. The options that every backend takes when it joins ranks.
#pragma once

#include <chrono>
#include <string>

#include <c10/core/Device.h>

namespace lockstep {

// How ranks are joined into a group, and how long the group's waits last.
struct GroupOptions {
  // How long a collective waits for its peers, unless Work::wait says otherwise.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Where this rank's tensors live; group->device() returns it.
  at::Device device = at::kCPU;
  // The backend that init_process_group() was asked for, maybe "auto".
  std::string requested_backend = "auto";
  // Why this backend was chosen, in human-readable form.
  std::string why = "asked for";
};

}  // namespace lockstep
