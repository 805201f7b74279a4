// SPDX-License-Identifier: BSD-3-Clause
// The IDX format of MNIST and its kin: two zero bytes, a type, a number of dimensions, the
// dimensions as big-endian 32-bit numbers, then the elements, the last dimension fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/data/stored_bytes.h"

namespace lockstep {

// An array in a file, raw or gzip (told apart by content, not by name). Only unsigned bytes are
// read, the type that these data sets have.
//
// UsageError, naming the file, if it is not there, is not IDX, is damaged, or does not hold exactly
// what its header says. Safe for hostile files: the header is read first, then at most one byte
// more than it announces; nothing is allocated beyond what the file can fill and the machine has
// available.
class IdxFile {
 public:
  explicit IdxFile(const std::filesystem::path& path);
  // From memory; name stands for the file in errors.
  IdxFile(std::span<const std::byte> bytes, std::string name);
  ~IdxFile();
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  // What the header announces.
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
