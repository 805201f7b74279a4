// SPDX-License-Identifier: BSD-3-Clause
// Reads the IDX format of MNIST and similar data sets: two zero bytes, a type, the number of
// dimensions, the dimensions as big-endian 32-bit numbers, then the elements, the last dimension
// fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

// An array in a file, raw or gzip (detected by content, not by name). Reads only unsigned bytes,
// the type of these data sets.
//
// UsageError, naming the file, if it is missing, is not IDX, is damaged, or does not hold exactly
// what its header announces. Safe for hostile files: reads the header first, then at most one byte
// more than it announces; allocates no more than the file can fill and the machine has available.
class IdxFile {
 public:
  explicit IdxFile(const std::filesystem::path& path);
  // Reads from memory; `name` replaces the file's name in errors.
  IdxFile(std::span<const std::byte> bytes, std::string name);
  ~IdxFile();
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  // The dimensions in the header.
  const std::vector<std::int64_t>& dimensions() const { return dimensions_; }
  // Reads the elements as a uint8 tensor of these dimensions. Call it once.
  at::Tensor read();

 private:
  class Content;
  IdxFile(StoredBytes bytes, std::string name);

  std::string name_;
  std::unique_ptr<Content> content_;
  std::vector<std::int64_t> dimensions_;
  std::size_t elements_ = 0;
};

}  // namespace lockstep
