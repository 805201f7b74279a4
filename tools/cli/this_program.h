// SPDX-License-Identifier: BSD-3-Clause
// The path of this program's own file, for starting it again.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::cli {

// BackendError if /proc does not show the path.
inline std::string this_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return program;
  throw BackendError("cannot tell where this program is: /proc/self/exe: " + error.message() +
                     "; mount /proc");
}

}  // namespace lockstep::cli
