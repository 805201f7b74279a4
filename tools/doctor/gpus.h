// SPDX-License-Identifier: BSD-3-Clause
// The GPUs of this machine, and those that libtorch can use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace lockstep {

struct Gpus {
  // All GPUs, by the driver's names, whether or not this process may use them.
  std::vector<std::string> models = {};
  // The number that libtorch can use in this process.
  int usable = 0;
  bool libtorch_has_cuda = false;
  // CUDA_VISIBLE_DEVICES, which may be set and empty.
  std::optional<std::string> visible_devices = {};
};

Gpus find_gpus();

// The names of NVIDIA's GPUs, from the folder in which the driver describes them.
std::vector<std::string> gpu_models(const std::string& folder = "/proc/driver/nvidia/gpus");

Finding judge_gpus(const Gpus& gpus);

}  // namespace lockstep
