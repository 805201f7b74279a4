// SPDX-License-Identifier: BSD-3-Clause
// Checks that the readers of data sets share: of folders, and of memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// UsageError unless the folder exists. `source` says where people get the data.
void require_folder(const std::filesystem::path& folder, std::string_view source);

// UsageError, beginning with `name`, unless this process can allocate `bytes` more bytes.
void require_available_memory(std::size_t bytes, const std::string& name);

}  // namespace lockstep
