// SPDX-License-Identifier: BSD-3-Clause
// Computes each checksum before the entry, so that nothing follows the data.
#include "lockstep/checkpoint/torch_file/zip_writer.h"

#include <algorithm>

#include <zlib.h>

#include "lockstep/checkpoint/torch_file/zip_records.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kEntryAlignment = 64;  // where data begins, as in torch.save
constexpr std::uint16_t kVersion = 45;         // the first version with zip64
constexpr std::uint16_t kPaddingId = 0x4246;
constexpr std::uint32_t kNoTime = 0x00210000;  // 1980-01-01, the earliest date

}  // namespace

void ZipWriter::write(const std::string& text) {
  out_.write(text.data(), text.size());
  written_ += text.size();
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> data) {
  const auto crc = static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
  const std::uint64_t header = written_;
  const bool wide_size = data.size() >= wide_from_;
  const bool wide_header = header >= wide_from_;
  const std::uint32_t size = wide_size ? zip::kIn64 : static_cast<std::uint32_t>(data.size());
  const auto name_bytes = static_cast<std::uint16_t>(name.size());

  std::string extra;
  if (wide_size) {
    zip::append(extra, zip::kZip64Extra, std::uint16_t{16}, std::uint64_t{data.size()},
                std::uint64_t{data.size()});
  }
  const std::uint64_t unpadded = header + zip::kLocalHeaderBytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (kEntryAlignment - unpadded % kEntryAlignment) % kEntryAlignment;
  zip::append(extra, kPaddingId, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string local;
  zip::append(local, zip::kLocalHeader, kVersion, zip::kNamesAreUtf8, std::uint16_t{0}, kNoTime,
              crc, size, size, name_bytes, static_cast<std::uint16_t>(extra.size()));
  write(local + name + extra);
  out_.write(data.data(), data.size());
  written_ += data.size();

  std::string wide;
  if (wide_size) {
    zip::append(wide, std::uint64_t{data.size()}, std::uint64_t{data.size()});
  }
  if (wide_header) zip::append(wide, header);
  std::string central_extra;
  if (!wide.empty()) {
    zip::append(central_extra, zip::kZip64Extra, static_cast<std::uint16_t>(wide.size()));
    central_extra += wide;
  }
  zip::append(directory_, zip::kCentralHeader, kVersion, kVersion, zip::kNamesAreUtf8,
              std::uint16_t{0}, kNoTime, crc, size, size, name_bytes,
              static_cast<std::uint16_t>(central_extra.size()), std::uint16_t{0}, std::uint16_t{0},
              std::uint16_t{0}, std::uint32_t{0},
              wide_header ? zip::kIn64 : static_cast<std::uint32_t>(header));
  directory_ += name + central_extra;
  ++entries_;
}

void ZipWriter::finish() {
  const std::uint64_t offset = written_;
  const std::uint64_t size = directory_.size();
  write(directory_);
  const std::uint64_t end = written_;
  std::string records;
  // The wide records are always written, as by torch.save, so that readers meet them in small files
  // too.
  zip::append(records, zip::kZip64EndRecord, std::uint64_t{44}, kVersion, kVersion,
              std::uint32_t{0}, std::uint32_t{0}, entries_, entries_, size, offset);
  zip::append(records, zip::kZip64Locator, std::uint32_t{0}, end, std::uint32_t{1});
  const auto entries =
      static_cast<std::uint16_t>(std::min<std::uint64_t>(entries_, zip::kIn64Short));
  const auto narrow = [](std::uint64_t value) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, zip::kIn64));
  };
  zip::append(records, zip::kEndRecord, std::uint16_t{0}, std::uint16_t{0}, entries, entries,
              narrow(size), narrow(offset), std::uint16_t{0});
  write(records);
}

}  // namespace lockstep
