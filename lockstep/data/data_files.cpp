// SPDX-License-Identifier: BSD-3-Clause
// Asks the file system and the machine.
#include "lockstep/data/data_files.h"

#include <cstdint>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"

namespace lockstep {

void require_folder(const std::filesystem::path& folder, std::string_view source) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return;
  const bool is_file = std::filesystem::exists(folder, ignored);
  throw UsageError(fmt::format(
      "{}: {}; {}", folder.string(),
      is_file ? "this is a file, not a folder of data" : "there is no such data folder", source));
}

void require_available_memory(std::size_t bytes, const std::string& name) {
  const std::int64_t available = available_memory();
  if (bytes <= static_cast<std::size_t>(available)) return;
  throw UsageError(fmt::format(
      "{}: reading it takes {:.1f} MiB, more than the {:.1f} MiB of memory that are available; "
      "name a smaller file, or start fewer ranks",
      name, static_cast<double>(bytes) / 0x1p20, static_cast<double>(available) / 0x1p20));
}

}  // namespace lockstep
