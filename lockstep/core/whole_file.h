// SPDX-License-Identifier: BSD-3-Clause
// Files that are never there in part.
#pragma once

#include <filesystem>
#include <functional>

namespace lockstep {

// UsageError if a file could not be written there: so that this is known before long work.
void check_can_write(const std::filesystem::path& file);

// Lets the function write a file of a temporary name beside this one, which is then flushed and
// renamed. BackendError if any of it fails, and an older file is as it was. A symbolic link stays,
// and what it leads to is replaced.
void write_whole(const std::filesystem::path& file,
                 const std::function<void(const std::filesystem::path& temporary)>& write);

}  // namespace lockstep
