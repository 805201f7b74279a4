// SPDX-License-Identifier: BSD-3-Clause
// std::filesystem::remove_all under another name: a libtorch with CUDA contains one of an older
// standard library, which programs get from it, and which crashes.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace lockstep {

// Removes a folder with all its contents, or a file; does nothing if there is none. Links are
// removed, not followed. After an error it continues with the rest, and returns the first error.
inline std::error_code remove_folder(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code first;
  std::error_code error;
  const auto keep_first = [&first](std::error_code next) {
    if (!first) first = next;
  };
  if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
    std::vector<fs::path> entries;  // a folder that changes while it is read may skip some
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      entries.push_back(entry->path());
    }
    keep_first(error);
    for (const fs::path& entry : entries) keep_first(remove_folder(entry));
  }
  fs::remove(path, error);
  keep_first(error);
  return first;
}

}  // namespace lockstep
