// SPDX-License-Identifier: BSD-3-Clause
// The loaded libtorch.
#include <ATen/Version.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include "tools/doctor/loaded_library.h"
#include "tools/doctor/probes.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {

Finding probe_libtorch() {
  const bool cuda = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  return {.found =
              fmt::format("{}, {} CUDA, from {}", versions_json().at("libtorch").get<std::string>(),
                          cuda ? "with" : "without",
                          library_of(reinterpret_cast<const void*>(&at::show_config)))};
}

}  // namespace lockstep
