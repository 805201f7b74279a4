// SPDX-License-Identifier: BSD-3-Clause
// A machine's /proc and /sys, as far as a test writes them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/private_tmpdir.h"

namespace lockstep::testing {

class MachineFiles {
 public:
  // The file's name has no leading slash: "proc/self/cgroup".
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::filesystem::path root() const { return tmpdir_.path(); }

 private:
  const PrivateTmpdir tmpdir_;
};

}  // namespace lockstep::testing
