// SPDX-License-Identifier: BSD-3-Clause
// Derives mode, ranks, replicas and devices from the options and the launcher.
#include "tools/recipes/launch_plan.h"

#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <torch/cuda.h>

#include "lockstep/core/error.h"
#include "lockstep/core/number.h"

namespace lockstep {
namespace {

// The replicas run in this process, whoever started it.
LaunchPlan plan_replicas(const LaunchRequest& request) {
  if (request.world_size.value_or(1) > 1) {
    throw UsageError(
        fmt::format("--mode dp runs as one rank, but WORLD_SIZE={}; use --mode ddp, or start "
                    "without the launcher",
                    *request.world_size));
  }
  return {TrainingMode::data_parallel, 1, request.ranks.value_or(request.default_ranks), false};
}

// Returns the number after "cuda:"; nullopt if there is none.
std::optional<int> gpu_index(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  constexpr Range<int> kIndices{0, std::numeric_limits<at::DeviceIndex>::max()};
  return parse_number(std::string_view(text).substr(kPrefix.size()), kIndices);
}

}  // namespace

LaunchPlan plan_launch(const LaunchRequest& request) {
  if (request.ranks && *request.ranks < 1) {
    throw UsageError(fmt::format("--ranks {}: give at least 1", *request.ranks));
  }
  if (request.mode == TrainingMode::data_parallel) return plan_replicas(request);
  if (request.ranks && request.world_size && *request.ranks != *request.world_size) {
    throw UsageError(
        fmt::format("--ranks {} contradicts WORLD_SIZE={} of the launcher that started this "
                    "process; leave out --ranks, or start without the launcher",
                    *request.ranks, *request.world_size));
  }
  const auto given = request.world_size ? request.world_size : request.ranks;
  TrainingMode mode = request.mode;
  if (mode == TrainingMode::automatic) {
    mode = given.value_or(1) > 1 ? TrainingMode::distributed : TrainingMode::single;
  }
  if (mode == TrainingMode::single && given.value_or(1) > 1) {
    throw UsageError(fmt::format("--mode single runs as one rank; {}{} needs --mode ddp",
                                 request.world_size ? "WORLD_SIZE=" : "--ranks ", *given));
  }
  const int ranks = given.value_or(mode == TrainingMode::distributed ? request.default_ranks : 1);
  return {mode, ranks, 1, !request.world_size && ranks > 1};
}

int threads_for_replicas(int cores, int replicas) {
  return cores < 2 * replicas ? 1 : cores / replicas * replicas;
}

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
