// SPDX-License-Identifier: BSD-3-Clause
// A TMPDIR of a test's own, so that it can tell what was left in it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::testing {

class PrivateTmpdir {
 public:
  PrivateTmpdir();
  // Removes it with all that is in it, and sets TMPDIR back.
  ~PrivateTmpdir();
  PrivateTmpdir(const PrivateTmpdir&) = delete;
  PrivateTmpdir& operator=(const PrivateTmpdir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> entries() const;

 private:
  std::filesystem::path path_;
  std::string before_;
};

}  // namespace lockstep::testing
