// SPDX-License-Identifier: BSD-3-Clause
// Changes of a folder of checkpoints, shared by the code that writes checkpoints and the code that
// removes them.
#pragma once

#include <filesystem>
#include <string_view>

namespace lockstep {

// The beginning of the names of entries that are not complete, or that are being removed. A store
// removes them when it opens the folder.
inline constexpr std::string_view kUnfinishedCheckpoint = ".unfinished-";

// Throws the BackendError "cannot WHAT PATH: REASON". `error`: an errno.
[[noreturn]] void fail_to(const char* what, const std::filesystem::path& path, int error);

// The other functions throw BackendError.

// Blocks until the folder's entries are on the disk; returns at once if the file system has no such
// operation.
void flush_folder(const std::filesystem::path& folder);

// Removes a folder with its contents, a file or a link; does nothing if there is none.
void remove_tree(const std::filesystem::path& path);

// Renames a folder, a file or a link; a file or a link at `to` is replaced.
void rename_to(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace lockstep
