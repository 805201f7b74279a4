// SPDX-License-Identifier: BSD-3-Clause
// Parses the device's name, and checks that libtorch sees the GPU.
#include "tools/recipes/choose_device.h"

#include <limits>

#include <fmt/format.h>
#include <torch/cuda.h>

#include "lockstep/core/error.h"
#include "lockstep/core/number.h"

namespace lockstep {
namespace {

// The number after "cuda:"; nullopt if there is none.
std::optional<int> gpu_index(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  constexpr Range<int> kIndices{0, std::numeric_limits<at::DeviceIndex>::max()};
  return parse_number(std::string_view(text).substr(kPrefix.size()), kIndices);
}

}  // namespace

int usable_gpus() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank) {
  return choose_device(text, local_rank, usable_gpus());
}

std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank,
                                        int gpus) {
  if (!text) return std::nullopt;
  if (*text == "cpu") return at::Device(at::kCPU);
  const auto index = *text == "cuda" ? std::optional(local_rank) : gpu_index(*text);
  if (!index) {
    throw UsageError(
        fmt::format("--device {}: there is no such device; give cpu, cuda or cuda:N", *text));
  }
  if (*index >= gpus) {
    throw UsageError(fmt::format(
        "--device {} on local rank {} means GPU {}, but libtorch sees {} GPU{}; use --device cpu, "
        "fewer ranks, or a libtorch with CUDA on a machine with that GPU",
        *text, local_rank, *index, gpus, gpus == 1 ? "" : "s"));
  }
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(*index));
}

}  // namespace lockstep
