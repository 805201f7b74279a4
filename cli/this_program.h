// SPDX-License-Identifier: BSD-3-Clause
// Where this program's own file is, to start it again.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::cli {

inline std::string this_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace lockstep::cli
