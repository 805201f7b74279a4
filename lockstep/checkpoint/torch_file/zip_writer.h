// SPDX-License-Identifier: BSD-3-Clause
// Writes a zip archive of stored entries into a WholeFile, each entry aligned as in torch.save.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/core/file/whole_file.h"

namespace lockstep {

class ZipWriter {
 public:
  // Sizes and offsets from this value on take zip64's wide fields.
  static constexpr std::uint64_t kWide = 0xffffffff;

  // `out` must outlive this object.
  explicit ZipWriter(WholeFile& out, std::uint64_t wide_from = kWide)
      : out_(out), wide_from_(wide_from) {}

  // The name has at most 65,535 bytes.
  void add(const std::string& name, std::span<const std::byte> data);
  // Writes the directory. The file still has to be committed.
  void finish();

 private:
  void write(const std::string& text);

  WholeFile& out_;
  std::uint64_t wide_from_;
  std::uint64_t written_ = 0;
  std::uint64_t entries_ = 0;
  std::string directory_;
};

}  // namespace lockstep
