// SPDX-License-Identifier: BSD-3-Clause
// Makes a TMPDIR, and restores the old one.
#include "support/private_tmpdir.h"

#include <stdexcept>

#include <stdlib.h>

#include "lockstep/core/file/remove_folder.h"

namespace lockstep::testing {

PrivateTmpdir::PrivateTmpdir() {
  const char* before = std::getenv("TMPDIR");
  before_ = before == nullptr ? "" : before;
  std::string path = (before_.empty() ? "/tmp" : before_) + "/lockstep-test-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make " + path);
  path_ = path;
  ::setenv("TMPDIR", path.c_str(), 1);
}

PrivateTmpdir::~PrivateTmpdir() {
  remove_folder(path_);
  before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
}

std::vector<std::string> PrivateTmpdir::entries() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

}  // namespace lockstep::testing
