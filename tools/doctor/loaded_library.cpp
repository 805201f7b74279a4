// SPDX-License-Identifier: BSD-3-Clause
// Looks an address up with dladdr.
#include "tools/doctor/loaded_library.h"

#include <filesystem>

#include <dlfcn.h>

namespace lockstep {

std::string library_of(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto file = std::filesystem::canonical(info.dli_fname, error);
  return error ? info.dli_fname : file.string();
}

}  // namespace lockstep
