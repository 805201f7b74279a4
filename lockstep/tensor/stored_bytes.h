// SPDX-License-Identifier: BSD-3-Clause
// Bytes that a reader fetches as needed, from memory or from a file of any size.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace lockstep {

struct StoredBytes {
  std::size_t size = 0;
  // Fills output with the bytes from offset on, which must exist.
  std::function<void(std::size_t offset, std::span<std::byte> output)> read;
};

// The bytes must outlive the result.
StoredBytes bytes_in_memory(std::span<const std::byte> bytes);

// Keeps the file open. UsageError, naming it, unless it is a readable regular file. read throws
// BackendError if the file has become shorter or its disk fails.
StoredBytes bytes_in_file(const std::filesystem::path& path);

}  // namespace lockstep
