// SPDX-License-Identifier: BSD-3-Clause
// The index of sharded safetensors files ("model.safetensors.index.json"): which file has which
// tensor.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors/safetensors_header.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

// Maps each tensor's name to the name of the file that has it. All files are in the index's folder.
// CheckpointError if the text is no index, or breaks a rule. `name` is the index's name, for
// messages.
std::map<std::string, std::string> read_safetensors_index(const StoredBytes& bytes,
                                                          const std::string& name);

// One of the files that the index names, held open.
struct SafetensorsPart {
  std::string file;  // as the index names it; empty without an index
  std::string path;
  StoredBytes bytes;
  SafetensorsHeader header;
};

// Opens the files that the index names, in the order of their names. CheckpointError if one is
// missing or damaged, or if the index and the files do not name the same tensors.
std::vector<SafetensorsPart> open_safetensors_parts(const std::filesystem::path& index);

}  // namespace lockstep
