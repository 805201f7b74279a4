// SPDX-License-Identifier: BSD-3-Clause
// The Pythons of this machine, for tests of files that both languages use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/locations.h"
#include "support/program.h"

namespace lockstep::testing {

// Of those on this machine that have the modules, "torch numpy": the one of the libtorch in use,
// and the system's. To import torch would take seconds.
inline std::vector<std::string> pythons_with(const std::string& modules) {
  const std::string find_all =
      "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1].split())))";
  std::vector<std::string> found;
  for (const std::string python : {kTorchPython, "/usr/bin/python3"}) {
    if (!std::filesystem::exists(python)) continue;
    if (!found.empty() && std::filesystem::equivalent(found.back(), python)) continue;
    Program program({python, "-W", "ignore", "-c", find_all, modules});
    if (program.wait() == 0) found.push_back(python);
  }
  return found;
}

}  // namespace lockstep::testing
