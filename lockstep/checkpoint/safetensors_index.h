// SPDX-License-Identifier: BSD-3-Clause
// The index of sharded safetensors files ("model.safetensors.index.json"): which file has which
// tensor.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

// The name of the file that has the tensor, by the tensor's name. All files are in the index's
// folder. CheckpointError if the text is no index, or breaks a rule; `name` is the file's, for
// messages.
std::map<std::string, std::string> read_safetensors_index(const StoredBytes& bytes,
                                                          const std::string& name);

// One of the files, which stays open.
struct SafetensorsPart {
  std::string file;  // as the index names it; empty if it is no part of several
  std::string path;
  StoredBytes bytes;
  SafetensorsHeader header;
};

// The files that the index names, by their names. CheckpointError if one is missing or damaged, or
// if the tensors in them are not those of the index.
std::vector<SafetensorsPart> open_safetensors_parts(const std::filesystem::path& index);

}  // namespace lockstep
