// SPDX-License-Identifier: BSD-3-Clause
// Reads GPUs from the driver's files in /proc, and compares them with libtorch's.
#include "tools/doctor/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/doctor/probes.h"
#include "tools/recipes/choose_device.h"

namespace lockstep {
namespace {

// Reads the line "Model: \t\t NVIDIA H100".
std::string model_in(const std::filesystem::path& file) {
  constexpr std::string_view kLabel = "Model:";
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kLabel)) continue;
    const auto begin = line.find_first_not_of(" \t", kLabel.size());
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "without a name";
}

std::string visible_words(const Gpus& gpus) {
  return gpus.visible_devices ? fmt::format(" (CUDA_VISIBLE_DEVICES={})", *gpus.visible_devices)
                              : "";
}

}  // namespace

std::vector<std::string> gpu_models(const std::string& folder) {
  std::vector<std::string> models;
  std::error_code error;
  for (const auto& gpu : std::filesystem::directory_iterator(folder, error)) {
    models.push_back(model_in(gpu.path() / "information"));
  }
  std::ranges::sort(models);
  return models;
}

Gpus find_gpus() {
  Gpus gpus{.models = gpu_models(),
            .usable = usable_gpus(),
            .libtorch_has_cuda = c10::impl::hasDeviceGuardImpl(at::kCUDA)};
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) gpus.visible_devices = visible;
  return gpus;
}

Finding judge_gpus(const Gpus& gpus) {
  const std::string machine =
      gpus.models.empty() ? "this machine shows no NVIDIA GPU"
                          : fmt::format("this machine has {}", fmt::join(gpus.models, ", "));
  if (gpus.usable > 0) {
    return {.found = fmt::format("libtorch can use {}{}; {}", gpus.usable, visible_words(gpus),
                                 machine)};
  }
  if (gpus.models.empty()) return {.found = "none: " + machine};
  if (!gpus.libtorch_has_cuda) {
    return {.state = Finding::State::note,
            .found = fmt::format("none: {}, but this libtorch was built without CUDA", machine),
            .advice = "to train on it, build Lockstep with a libtorch that has CUDA"};
  }
  if (gpus.visible_devices) {
    return {.state = Finding::State::note,
            .found = fmt::format("none{}: {}", visible_words(gpus), machine),
            .advice = "unset CUDA_VISIBLE_DEVICES, or name GPUs in it, to train on them"};
  }
  return {.state = Finding::State::broken,
          .found = fmt::format("none: {}, but libtorch cannot use it", machine),
          .advice =
              "see whether nvidia-smi works, and whether the driver is as new as the CUDA "
              "that libtorch was built with"};
}

Finding probe_gpus() {
  return judge_gpus(find_gpus());
}

}  // namespace lockstep
