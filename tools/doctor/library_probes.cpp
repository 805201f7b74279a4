// SPDX-License-Identifier: BSD-3-Clause
// The libraries that training computes with: libtorch, its BLAS, and CUDA's GPUs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/doctor/probes.h"
#include "tools/recipes/json_fields.h"
#include "tools/recipes/launch_plan.h"

namespace lockstep {
namespace {

// Returns the file that contains the code at this address, with symbolic links resolved; empty if
// the address is in no program or library.
std::string library_of(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto file = std::filesystem::canonical(info.dli_fname, error);
  return error ? info.dli_fname : file.string();
}

constexpr int kMatrixSize = 256;

void* find_symbol(const std::string& file, const char* name) {
  // The library is loaded already; this handle searches only it and its dependencies.
  void* library = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* symbol = ::dlsym(library, name);
  ::dlclose(library);
  return symbol;
}

// Each fast library has functions that no other one has.
std::string blas_name(const std::string& file) {
  if (void* config = find_symbol(file, "openblas_get_config")) {
    return reinterpret_cast<const char* (*)()>(config)();
  }
  if (find_symbol(file, "MKL_Get_Version_String") != nullptr) return "Intel MKL";
  if (find_symbol(file, "bli_info_get_version_str") != nullptr) return "BLIS";
  return {};
}

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

Finding probe_libtorch() {
  const bool cuda = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  return {.found =
              fmt::format("{}, {} CUDA, from {}", versions_json().at("libtorch").get<std::string>(),
                          cuda ? "with" : "without",
                          library_of(reinterpret_cast<const void*>(&at::show_config)))};
}

Blas find_blas() {
  if (at::hasMKL()) {
    return {at::get_mkl_version(), library_of(reinterpret_cast<const void*>(&at::show_config))};
  }
  const void* product = ::dlsym(RTLD_DEFAULT, "sgemm_");
  if (product == nullptr) return {};
  const std::string file = library_of(product);
  return {blas_name(file), file};
}

double measure_product() {
  using Clock = std::chrono::steady_clock;
  const at::Tensor matrix = at::ones({kMatrixSize, kMatrixSize});
  // The first product starts threads and reads code from disk.
  at::mm(matrix, matrix);
  auto shortest = Clock::duration::max();
  for (int repetition = 0; repetition < 2; ++repetition) {
    const auto begin = Clock::now();
    at::mm(matrix, matrix);
    shortest = std::min(shortest, Clock::now() - begin);
  }
  const double operations = 2.0 * kMatrixSize * kMatrixSize * kMatrixSize;
  return operations / std::chrono::duration<double, std::nano>(shortest).count();
}

Finding judge_blas(const Blas& blas, double gflops) {
  const std::string speed =
      fmt::format("{0:.1f} GFLOP/s in a product of {1} x {1} floats", gflops, kMatrixSize);
  if (!blas.name.empty()) return {.found = fmt::format("{}; {}; {}", blas.name, blas.file, speed)};
  if (blas.file.empty()) {
    return {.state = Finding::State::note,
            .found = "libtorch does not say which one it uses; " + speed,
            .advice = "if that is less than 10 for each core, use a libtorch with OpenBLAS or MKL"};
  }
  return {.state = Finding::State::note,
          .found = fmt::format("{} is not OpenBLAS, MKL or BLIS, so it may be the "
                               "reference BLAS, which is 25 times slower; {}",
                               blas.file, speed),
          .advice = "install OpenBLAS: the package libopenblas0-pthread on Debian"};
}

Finding probe_blas() {
  return judge_blas(find_blas(), measure_product());
}

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
