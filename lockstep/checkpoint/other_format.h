// SPDX-License-Identifier: BSD-3-Clause
// Recognizes what a reader of tensors cannot read, so that its error says what the file is and what
// to do with it.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

// As in "it is a GGUF file (llama.cpp); convert it to safetensors"; empty if the first bytes do not
// tell. Reads at most 64 KiB.
std::string other_format(const StoredBytes& bytes);

// Whether this is a text of JSON that begins an object, as an index of sharded files is. A
// safetensors file is none, though it may begin with the same byte.
bool is_json_text(const StoredBytes& bytes);

// The file in this folder that has the tensors, as far as names tell: an index,
// "model.safetensors", another file of tensors, or that in a folder of checkpoints. Empty if there
// is none.
std::filesystem::path tensor_file_in(const std::filesystem::path& folder);

// As bytes_in_file(); the error for a folder names a file in it.
StoredBytes bytes_in_tensor_file(const std::filesystem::path& file);

}  // namespace lockstep
