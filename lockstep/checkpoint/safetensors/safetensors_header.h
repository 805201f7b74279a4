// SPDX-License-Identifier: BSD-3-Clause
// The header of a safetensors file: parsed, checked and written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors/safetensors_entry.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

constexpr std::uint64_t kMostSafetensorsHeaderBytes = 100'000'000;
constexpr const char* kSafetensorsMetadata = "__metadata__";

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  // The byte of the file at which the data starts.
  std::uint64_t data_offset = 0;
};

// CheckpointError if the header breaks a rule of the format or the entries do not fill the data.
// `name` is the file's name, for messages.
SafetensorsHeader read_safetensors_header(const StoredBytes& bytes, const std::string& name);

// Returns the text of the header, without its length, padded so that the data is aligned to 8
// bytes. UsageError for text that is not UTF-8, and for a header that would be too long.
std::string safetensors_header_text(const std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
