// SPDX-License-Identifier: BSD-3-Clause
// The Pythons of this machine, for tests of files that both languages use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/locations.h"
#include "support/program.h"

namespace lockstep::testing {

// Of those on this machine that import the modules: the one of the libtorch in use, and the
// system's.
inline std::vector<std::string> pythons_with(const std::string& modules) {
  std::vector<std::string> found;
  for (const std::string python : {kTorchPython, "/usr/bin/python3"}) {
    if (!std::filesystem::exists(python)) continue;
    if (!found.empty() && std::filesystem::equivalent(found.back(), python)) continue;
    Program program({python, "-W", "ignore", "-c", "import " + modules});
    if (program.wait() == 0) found.push_back(python);
  }
  return found;
}

}  // namespace lockstep::testing
