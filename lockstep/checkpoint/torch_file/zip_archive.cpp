// SPDX-License-Identifier: BSD-3-Clause
// Reads the end of the archive, then its directory, then every local header.
#include "lockstep/checkpoint/torch_file/zip_archive.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <zlib.h>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/checkpoint/torch_file/zip_records.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {
namespace {

// Storages, and the other entries that torch.save writes.
constexpr std::uint64_t kMostZipEntries = kMostStoredTensors + 100;
// The directory is read into memory as a whole; a sparse file could announce one of any size.
constexpr std::uint64_t kMostZipDirectoryBytes = 100'000'000;
constexpr std::size_t kMostZipNameBytes = 4'096;
constexpr std::size_t kMostZipExtraBytes = 1'024;  // with the comment; torch.save writes 32

// Returns the values of the zip64 field among the extra fields; empty if it is missing or
// malformed.
std::string_view zip64_values(std::string_view extra) {
  zip::Fields fields(extra);
  while (fields.left() >= 4) {
    const std::uint16_t id = fields.u16();
    const std::uint16_t size = fields.u16();
    if (size > fields.left()) return {};
    const std::string_view values = fields.text(size);
    if (id == zip::kZip64Extra) return values;
  }
  return {};
}

// Returns the field itself, or the next value of the zip64 extra field; nullopt if it is missing.
std::optional<std::uint64_t> wide_field(std::uint32_t field, zip::Fields& values) {
  if (field != zip::kIn64) return field;
  if (values.left() < 8) return std::nullopt;
  return values.u64();
}

std::uint32_t crc_of(std::span<const std::byte> bytes, std::uint32_t crc = 0) {
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace

ZipArchive::ZipArchive(StoredBytes bytes, std::string file,
                       const std::function<void(const ZipArchive&)>& check_names)
    : bytes_(std::move(bytes)), file_(std::move(file)) {
  const Directory directory = find_directory();
  read_directory(directory);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!by_name_.emplace(entries_[i].name, i).second) refuse(entries_[i], "it is there twice");
  }
  check_names(*this);
  check_stored();
  check_local_headers(directory.offset);
}

void ZipArchive::fail(const std::string& what) const {
  throw CheckpointError(fmt::format("{}: {}", file_, what));
}

void ZipArchive::refuse(const ZipEntry& entry, const std::string& what) const {
  fail(fmt::format("entry {}: {}", in_quotes(entry.name), what));
}

std::string ZipArchive::bytes_at(std::uint64_t offset, std::uint64_t size) const {
  std::string text(size, '\0');
  bytes_.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

ZipArchive::Directory ZipArchive::find_directory() const {
  if (bytes_.size < zip::kEndRecordBytes) {
    fail(fmt::format("it has {} bytes, too few for a zip archive", bytes_.size));
  }
  std::uint64_t end = bytes_.size - zip::kEndRecordBytes;
  const std::string record = bytes_at(end, zip::kEndRecordBytes);
  zip::Fields fields(record);
  const bool is_end = fields.u32() == zip::kEndRecord;
  const std::uint16_t disk = fields.u16();
  const std::uint16_t first_disk = fields.u16();
  const std::uint16_t entries_here = fields.u16();
  const std::uint16_t entries = fields.u16();
  const std::uint32_t size = fields.u32();
  const std::uint32_t offset = fields.u32();
  const std::uint16_t comment = fields.u16();
  if (!is_end || comment != 0) {
    fail(
        "it does not end with the end record of a zip archive: it is incomplete, or something "
        "follows the record");
  }
  if (disk != 0 || first_disk != 0 || entries_here != entries) {
    fail("its end record says that the archive has several parts");
  }
  Directory directory{.entries = entries, .size = size, .offset = offset};
  std::string locator;
  if (end >= zip::kZip64LocatorBytes + zip::kZip64EndRecordBytes) {
    locator = bytes_at(end - zip::kZip64LocatorBytes, zip::kZip64LocatorBytes);
  }
  if (!locator.empty() && zip::Fields(locator).u32() == zip::kZip64Locator) {
    end -= zip::kZip64LocatorBytes + zip::kZip64EndRecordBytes;
    zip::Fields locator_fields(std::string_view(locator).substr(8));
    const std::string wide = bytes_at(end, zip::kZip64EndRecordBytes);
    zip::Fields values(wide);
    if (locator_fields.u64() != end || values.u32() != zip::kZip64EndRecord || values.u64() != 44) {
      fail("its zip64 end record is not where its locator says");
    }
    values.text(4);  // versions
    if (values.u32() != 0 || values.u32() != 0) {
      fail("its zip64 end record says that the archive has several parts");
    }
    const std::uint64_t wide_here = values.u64();
    const Directory by_wide{.entries = values.u64(), .size = values.u64(), .offset = values.u64()};
    const auto agree = [](std::uint64_t narrow, std::uint64_t wider, std::uint64_t in_64) {
      return narrow == wider || narrow == in_64;
    };
    if (wide_here != by_wide.entries || !agree(entries, by_wide.entries, zip::kIn64Short) ||
        !agree(size, by_wide.size, zip::kIn64) || !agree(offset, by_wide.offset, zip::kIn64)) {
      fail("its end record and its zip64 end record disagree");
    }
    directory = by_wide;
  }
  if (directory.offset > end || directory.size != end - directory.offset) {
    fail(
        fmt::format("its end record puts a central directory of {} bytes at byte {}, but itself "
                    "starts at byte {}",
                    directory.size, directory.offset, end));
  }
  if (directory.entries > kMostZipEntries ||
      directory.entries > directory.size / zip::kCentralHeaderBytes) {
    fail(
        fmt::format("its end record announces {} entries in a directory of {} bytes, and at most "
                    "{} are read",
                    directory.entries, directory.size, kMostZipEntries));
  }
  const std::uint64_t most = std::min(
      kMostZipDirectoryBytes,
      directory.entries * (zip::kCentralHeaderBytes + kMostZipNameBytes + kMostZipExtraBytes));
  if (directory.size > most) {
    fail(fmt::format("its central directory has {} bytes for {} entries, and at most {} are read",
                     directory.size, directory.entries, most));
  }
  return directory;
}

void ZipArchive::read_directory(const Directory& directory) {
  const std::string text = bytes_at(directory.offset, directory.size);
  zip::Fields fields(text);
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (fields.left() < zip::kCentralHeaderBytes || fields.u32() != zip::kCentralHeader) {
      fail(fmt::format("entry {} of its central directory is damaged", i));
    }
    fields.text(4);  // versions
    const std::uint16_t flags = fields.u16();
    const std::uint16_t method = fields.u16();
    fields.text(4);  // time
    ZipEntry entry;
    entry.crc = fields.u32();
    const std::uint32_t packed = fields.u32();
    const std::uint32_t unpacked = fields.u32();
    const std::uint16_t name = fields.u16();
    const std::uint16_t extra = fields.u16();
    const std::uint16_t comment = fields.u16();
    const std::uint16_t disk = fields.u16();
    fields.text(6);  // attributes
    const std::uint32_t offset = fields.u32();
    if (fields.left() < std::size_t{name} + extra + comment) {
      fail(fmt::format("entry {} of its central directory is damaged", i));
    }
    entry.name = fields.text(name);
    zip::Fields wide(zip64_values(fields.text(extra)));
    fields.text(comment);
    if (name == 0 || name > kMostZipNameBytes) {
      refuse(entry,
             fmt::format("its name has {} bytes, and names have 1 to {}", name, kMostZipNameBytes));
    }
    if ((flags & ~(zip::kHasDescriptor | zip::kNamesAreUtf8)) != 0) {
      refuse(entry,
             fmt::format("its flags are {:#x}: it is encrypted, or of an unknown kind", flags));
    }
    const auto size = wide_field(unpacked, wide);
    const auto packed_size = wide_field(packed, wide);
    const auto header = wide_field(offset, wide);
    if (!size || !packed_size || !header || disk != 0) {
      refuse(entry, "its zip64 field is missing, or it is in another part of the archive");
    }
    entry.size = *size;
    entry.packed_size = *packed_size;
    entry.method = method;
    entry.header = *header;
    entry.has_descriptor = (flags & zip::kHasDescriptor) != 0;
    entries_.push_back(std::move(entry));
  }
  if (fields.left() > 0) {
    fail(fmt::format("{} bytes follow the last entry of its central directory", fields.left()));
  }
}

void ZipArchive::check_stored() const {
  for (const ZipEntry& entry : entries_) {
    if (entry.method != 0) {
      refuse(entry, fmt::format("it is compressed (method {}), and torch.save stores entries as "
                                "they are; unpack it, and save it again in Python",
                                entry.method));
    }
    if (entry.size != entry.packed_size) {
      refuse(entry, fmt::format("its sizes {} and {} differ, though it is stored",
                                entry.packed_size, entry.size));
    }
  }
}

void ZipArchive::check_local_headers(std::uint64_t end) {
  std::vector<ZipEntry*> sorted;
  for (auto& entry : entries_) sorted.push_back(&entry);
  std::ranges::sort(sorted, {}, [](const ZipEntry* entry) { return entry->header; });
  if (!sorted.empty() && sorted.front()->header != 0) {
    refuse(*sorted.front(),
           fmt::format("it is the first one, but starts at byte {}", sorted.front()->header));
  }
  if (sorted.empty() && end != 0) fail("it has no entries, but data");
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    check_local_header(*sorted[i], i + 1 < sorted.size() ? sorted[i + 1]->header : end);
  }
}

// `end` is where the next entry or the directory starts.
void ZipArchive::check_local_header(ZipEntry& entry, std::uint64_t end) const {
  if (entry.header > end || end - entry.header < zip::kLocalHeaderBytes + entry.name.size() ||
      end > bytes_.size) {
    refuse(entry,
           fmt::format("its header at byte {} overlaps what starts at byte {}", entry.header, end));
  }
  const std::string text = bytes_at(entry.header, zip::kLocalHeaderBytes + entry.name.size());
  zip::Fields fields(text);
  const bool is_header = fields.u32() == zip::kLocalHeader;
  fields.text(2);  // version
  const std::uint16_t flags = fields.u16();
  const std::uint16_t method = fields.u16();
  fields.text(4);  // time
  const std::uint32_t crc = fields.u32();
  const std::uint32_t packed = fields.u32();
  const std::uint32_t unpacked = fields.u32();
  const std::uint16_t name = fields.u16();
  const std::uint16_t extra = fields.u16();
  const bool same_flags = ((flags & zip::kHasDescriptor) != 0) == entry.has_descriptor &&
                          (flags & ~(zip::kHasDescriptor | zip::kNamesAreUtf8)) == 0;
  if (!is_header || method != 0 || !same_flags || name != entry.name.size() ||
      fields.text(name) != entry.name) {
    refuse(entry, fmt::format("its header at byte {} does not agree with the central directory",
                              entry.header));
  }
  const std::uint64_t before = zip::kLocalHeaderBytes + name + extra;
  const std::uint64_t room = end - entry.header;
  const std::uint64_t least_after = entry.has_descriptor ? zip::kDescriptorBytes : 0;
  if (room < before + least_after || entry.size > room - before - least_after) {
    refuse(entry, fmt::format("its {} bytes overlap what starts at byte {}", entry.size, end));
  }
  entry.data = entry.header + before;
  // In the header the sizes may be left to the descriptor, which follows the data.
  const bool left_out = entry.has_descriptor && crc == 0 && packed == 0 && unpacked == 0;
  if (!left_out) {
    const std::string extras = bytes_at(entry.data - extra, extra);
    zip::Fields wide(zip64_values(extras));
    const auto size = wide_field(unpacked, wide);
    const auto packed_size = wide_field(packed, wide);
    if (crc != entry.crc || size != entry.size || packed_size != entry.size) {
      refuse(entry, "its header and the central directory disagree about its size or checksum");
    }
  }
  const std::uint64_t after = room - before - entry.size;
  if (!entry.has_descriptor) {
    if (after > 0) refuse(entry, fmt::format("{} unknown bytes follow it", after));
    return;
  }
  if (after != zip::kDescriptorBytes && after != zip::kZip64DescriptorBytes) {
    refuse(entry, fmt::format("{} bytes follow it, which are no descriptor", after));
  }
  const std::string descriptor = bytes_at(entry.data + entry.size, after);
  zip::Fields values(descriptor);
  const bool is_descriptor = values.u32() == zip::kDescriptor && values.u32() == entry.crc;
  const bool wide = after == zip::kZip64DescriptorBytes;
  const std::uint64_t packed_after = wide ? values.u64() : values.u32();
  const std::uint64_t unpacked_after = wide ? values.u64() : values.u32();
  if (!is_descriptor || packed_after != entry.size || unpacked_after != entry.size) {
    refuse(entry, "the descriptor after it and the central directory disagree");
  }
}

const ZipEntry* ZipArchive::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void ZipArchive::read(const ZipEntry& entry, std::span<std::byte> output) const {
  bytes_.read(entry.data, output);
  check_crc(entry, crc_of(output));
}

std::string ZipArchive::read_text(const ZipEntry& entry) const {
  std::string text(entry.size, '\0');
  read(entry, std::as_writable_bytes(std::span(text)));
  return text;
}

void ZipArchive::check(const ZipEntry& entry) const {
  constexpr std::uint64_t kChunk = 1 << 20;
  std::vector<std::byte> chunk(std::min(kChunk, entry.size));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < entry.size;) {
    const std::span part(chunk.data(), std::min<std::uint64_t>(kChunk, entry.size - done));
    bytes_.read(entry.data + done, part);
    crc = crc_of(part, crc);
    done += part.size();
  }
  check_crc(entry, crc);
}

void ZipArchive::check_crc(const ZipEntry& entry, std::uint32_t crc) const {
  if (crc == entry.crc) return;
  refuse(entry, fmt::format("its data is damaged: its checksum is {:08x}, and the archive says "
                            "{:08x}; copy or download the file again",
                            crc, entry.crc));
}

}  // namespace lockstep
