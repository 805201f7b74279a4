// SPDX-License-Identifier: BSD-3-Clause
// Identifies the BLAS by its symbols, and times a matrix product.
#include "tools/doctor/blas.h"

#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "tools/doctor/loaded_library.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

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
std::string name_of(const std::string& file) {
  if (void* config = find_symbol(file, "openblas_get_config")) {
    return reinterpret_cast<const char* (*)()>(config)();
  }
  if (find_symbol(file, "MKL_Get_Version_String") != nullptr) return "Intel MKL";
  if (find_symbol(file, "bli_info_get_version_str") != nullptr) return "BLIS";
  return {};
}

}  // namespace

Blas find_blas() {
  if (at::hasMKL()) {
    return {at::get_mkl_version(), library_of(reinterpret_cast<const void*>(&at::show_config))};
  }
  const void* product = ::dlsym(RTLD_DEFAULT, "sgemm_");
  if (product == nullptr) return {};
  const std::string file = library_of(product);
  return {name_of(file), file};
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

}  // namespace lockstep
