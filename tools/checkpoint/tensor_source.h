// SPDX-License-Identifier: BSD-3-Clause
// The named tensors of a file of either format, or of sharded files by their index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

// Whether this is a file of torch.save, by its first bytes. UsageError if it cannot be read or is a
// folder.
bool is_torch_file(const std::filesystem::path& file);

class TensorSource {
 public:
  // Recognizes the format by the file's content. `part`: an entry of a torch.save file, such
  // as "model"; if it is empty, every tensor in the file. UsageError for a part of a safetensors
  // file, which has none; CheckpointError if the file cannot be read.
  TensorSource(const std::filesystem::path& file, const std::string& part);

  bool is_safetensors() const { return std::holds_alternative<SafetensorsFile>(content_); }
  // "safetensors" or "torch".
  std::string format() const { return is_safetensors() ? "safetensors" : "torch"; }
  const std::string& file() const { return file_; }
  const std::vector<std::string>& names() const { return names_; }
  // Returns Python's name of the type, or the file's own name if Lockstep does not know the type.
  std::string dtype(std::size_t index) const;
  std::vector<std::int64_t> shape(std::size_t index) const;
  // Whether this libtorch has the type.
  bool can_read(std::size_t index) const;
  // Reads the tensor from a safetensors file now; the tensors of a torch.save file have been read
  // already. CheckpointError unless can_read().
  at::Tensor read(std::size_t index) const;
  // Returns the tensor if can_read(), otherwise its bytes.
  at::Tensor read_or_bytes(std::size_t index) const;
  // Returns the number of tensors for which can_read() is false.
  std::size_t unreadable() const;
  std::optional<std::size_t> find(const std::string& name) const;
  // Returns the number of files: 1 unless an index was opened.
  std::size_t files() const;
  // Empty for torch.save.
  std::map<std::string, std::string> metadata() const;
  // Returns how many values of a torch.save file are not tensors, such as numbers and strings; also
  // counts those outside the part.
  std::size_t other_values() const { return other_values_; }

 private:
  std::string file_;
  std::size_t other_values_ = 0;
  std::variant<SafetensorsFile, std::vector<NamedTensor>> content_;
  std::vector<std::string> names_;
  std::map<std::string, std::size_t> by_name_;
};

// Reads all tensors, for a writer.
std::vector<NamedTensor> read_all(const TensorSource& source);

}  // namespace lockstep
