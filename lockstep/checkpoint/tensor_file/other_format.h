// SPDX-License-Identifier: BSD-3-Clause
// Recognizes what a reader of tensors cannot read, so that its error says what the file is and what
// to do with it.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

// Returns text such as "it is a GGUF file (llama.cpp); convert it to safetensors"; empty if the
// first bytes are of no known format. Reads at most 64 KiB.
std::string other_format(const StoredBytes& bytes);

// Whether this is JSON text that begins with an object, such as an index of sharded files. False
// for a safetensors file, though it may begin with the same byte.
bool is_json_text(const StoredBytes& bytes);

// Returns the file in this folder that has the tensors, judged by names: the latest
// checkpoint's model, an index, "model.safetensors", or another file of tensors. Empty if there is
// none.
std::filesystem::path tensor_file_in(const std::filesystem::path& folder);

// bytes_in_file(), but the error for a folder names a file in it.
StoredBytes bytes_in_tensor_file(const std::filesystem::path& file);

}  // namespace lockstep
