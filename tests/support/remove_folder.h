// SPDX-License-Identifier: BSD-3-Clause
// std::filesystem::remove_all for tests: a libtorch with CUDA has one of an older standard
// library's in libtorch.so, which the program gets, and which crashes.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace lockstep::testing {

// Or a file; nothing if there is none.
inline void remove_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(std::filesystem::symlink_status(path, ignored))) {
    const std::vector<std::filesystem::directory_entry> entries(
        std::filesystem::directory_iterator(path, ignored), {});
    for (const auto& entry : entries) remove_folder(entry.path());
  }
  std::filesystem::remove(path, ignored);
}

}  // namespace lockstep::testing
