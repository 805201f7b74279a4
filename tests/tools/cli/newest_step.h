// SPDX-License-Identifier: BSD-3-Clause
// How far a training has come, by its folder of checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace lockstep::testing {

// Of the newest checkpoint with a name, as a training that goes on finds it; 0 if there is none.
// The link `latest` moves a moment after the checkpoint has its name.
inline std::int64_t newest_step(const std::filesystem::path& checkpoints) {
  std::int64_t newest = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(checkpoints, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("step-"))
      newest = std::max<std::int64_t>(newest, std::stoll(name.substr(5)));
  }
  return newest;
}

}  // namespace lockstep::testing
