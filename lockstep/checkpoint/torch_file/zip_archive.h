// SPDX-License-Identifier: BSD-3-Clause
// Reads a zip archive of stored entries, as torch.save writes it, without trusting it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {

struct ZipEntry {
  std::string name;
  std::uint64_t header = 0;  // byte of the file at which its local header starts
  std::uint64_t data = 0;    // byte of the file at which its data starts
  std::uint64_t size = 0;
  std::uint64_t packed_size = 0;
  std::uint32_t crc = 0;
  std::uint16_t method = 0;
  bool has_descriptor = false;
};

// The constructor compares the end record, the central directory and every local header.
// CheckpointError if they disagree, if an entry is compressed or encrypted, or unless the entries
// fill the file up to the directory without overlap or gap. An entry therefore never has more bytes
// than the file.
class ZipArchive {
 public:
  // `file` is for messages. `check_names` is called before anything else is checked, and may throw
  // because of names: archives of another kind are often compressed.
  ZipArchive(
      StoredBytes bytes, std::string file,
      const std::function<void(const ZipArchive&)>& check_names = [](const ZipArchive&) {});

  const std::vector<ZipEntry>& entries() const { return entries_; }
  // Returns null if there is no such entry.
  const ZipEntry* find(const std::string& name) const;
  // Fills `output`, which has the entry's size. CheckpointError if the checksum is wrong.
  void read(const ZipEntry& entry, std::span<std::byte> output) const;
  std::string read_text(const ZipEntry& entry) const;
  // Compares the checksum. Takes a fixed amount of memory.
  void check(const ZipEntry& entry) const;

  const std::string& file() const { return file_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Directory {
    std::uint64_t entries;
    std::uint64_t size;
    std::uint64_t offset;
  };

  std::string bytes_at(std::uint64_t offset, std::uint64_t size) const;
  Directory find_directory() const;
  void read_directory(const Directory& directory);
  void check_stored() const;
  void check_local_headers(std::uint64_t end);
  void check_local_header(ZipEntry& entry, std::uint64_t end) const;
  void check_crc(const ZipEntry& entry, std::uint32_t crc) const;
  [[noreturn]] void refuse(const ZipEntry& entry, const std::string& what) const;

  StoredBytes bytes_;
  std::string file_;
  std::vector<ZipEntry> entries_;
  std::map<std::string, std::size_t> by_name_;  // ordered: no names collide
};

}  // namespace lockstep
