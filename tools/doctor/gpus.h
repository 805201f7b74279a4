// SPDX-License-Identifier: BSD-3-Clause
// The GPUs of this machine, and those of them that libtorch can use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace lockstep {

struct Gpus {
  // As the driver names them, whoever may use them.
  std::vector<std::string> models = {};
  // By libtorch, in this process.
  int usable = 0;
  bool libtorch_has_cuda = false;
  // CUDA_VISIBLE_DEVICES, which may be set and empty.
  std::optional<std::string> visible_devices = {};
};

Gpus find_gpus();

// The names of NVIDIA's GPUs in the folder where the driver describes them.
std::vector<std::string> gpu_models(const std::string& folder = "/proc/driver/nvidia/gpus");

Finding judge_gpus(const Gpus& gpus);

}  // namespace lockstep
