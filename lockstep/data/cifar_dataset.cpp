// SPDX-License-Identifier: BSD-3-Clause
// Checks the sizes of a split's files, then reads their records: one or two labels and 3072 pixels.
#include "lockstep/data/cifar_dataset.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/data_files.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {
namespace {

constexpr std::int64_t kCifarSide = 32;
constexpr std::size_t kCifarPixels = 3 * 32 * 32;

// What distinguishes the kinds.
struct CifarFormat {
  const char* archive;
  // The folder that the archive has.
  const char* unpacked;
  // Bytes of a record before its pixels, and which of them is the label.
  std::size_t label_bytes;
  std::size_t label_at;
  int classes;

  std::size_t record_bytes() const { return label_bytes + kCifarPixels; }
  std::string source() const {
    return fmt::format(
        "get the binary version, https://www.cs.toronto.edu/~kriz/{}, unpack it, and name the "
        "folder {}",
        archive, unpacked);
  }
};

CifarFormat format_of(CifarKind kind) {
  if (kind == CifarKind::cifar10) {
    return {"cifar-10-binary.tar.gz", "cifar-10-batches-bin", 1, 0, 10};
  }
  const bool coarse = kind == CifarKind::cifar100_coarse;
  return {"cifar-100-binary.tar.gz", "cifar-100-binary", 2, coarse ? 0u : 1u, coarse ? 20 : 100};
}

std::vector<std::string> file_names(CifarKind kind, CifarSplit split) {
  const bool train = split == CifarSplit::train;
  if (kind != CifarKind::cifar10) return {train ? "train.bin" : "test.bin"};
  if (!train) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
          "data_batch_5.bin"};
}

struct CifarFile {
  std::string name;
  StoredBytes bytes;
  std::size_t records;
};

CifarFile open_cifar_file(const std::filesystem::path& path, const CifarFormat& format) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw UsageError(fmt::format("{}: there is no {}; {}", path.parent_path().string(),
                                 path.filename().string(), format.source()));
  }
  CifarFile file{path.string(), bytes_in_file(path), 0};
  file.records = file.bytes.size / format.record_bytes();
  if (file.records == 0 || file.bytes.size % format.record_bytes() != 0) {
    throw UsageError(fmt::format(
        "{}: its {} bytes are not one or more records of {} bytes; copy or download the file again",
        file.name, file.bytes.size, format.record_bytes()));
  }
  return file;
}

// Reads the records of a file into rows of `images` and `labels`.
void read_records(const CifarFile& file, const CifarFormat& format, std::uint8_t* images,
                  std::int64_t* labels) {
  // A few records at a time, so that the file's bytes are not in memory twice.
  constexpr std::size_t kRecordsAtOnce = 64;
  std::vector<std::byte> buffer(kRecordsAtOnce * format.record_bytes());
  for (std::size_t i = 0; i < file.records; ++i) {
    const std::size_t within = i % kRecordsAtOnce;
    if (within == 0) {
      const std::size_t count = std::min(kRecordsAtOnce, file.records - i);
      file.bytes.read(i * format.record_bytes(),
                      std::span(buffer).first(count * format.record_bytes()));
    }
    const std::byte* record = buffer.data() + within * format.record_bytes();
    const int label = std::to_integer<int>(record[format.label_at]);
    if (label >= format.classes) {
      throw UsageError(fmt::format(
          "{}: the label of image {} is {}, but there are {} classes; copy or download the file "
          "again",
          file.name, i, label, format.classes));
    }
    labels[i] = label;
    std::memcpy(images + i * kCifarPixels, record + format.label_bytes, kCifarPixels);
  }
}

}  // namespace

CifarDataset::CifarDataset(const std::filesystem::path& folder, CifarKind kind, CifarSplit split) {
  const CifarFormat format = format_of(kind);
  require_folder(folder, format.source());
  std::error_code ignored;
  const bool is_parent = std::filesystem::is_directory(folder / format.unpacked, ignored);
  std::vector<CifarFile> files;
  std::size_t records = 0;
  for (const std::string& name : file_names(kind, split)) {
    const auto path = (is_parent ? folder / format.unpacked : folder) / name;
    files.push_back(open_cifar_file(path, format));
    records += files.back().records;
  }
  require_available_memory(records * (kCifarPixels + sizeof(std::int64_t)), folder.string());
  const auto count = static_cast<std::int64_t>(records);
  images_ = at::empty({count, 3, kCifarSide, kCifarSide}, at::kByte);
  labels_ = at::empty({count}, at::kLong);
  auto* images = images_.data_ptr<std::uint8_t>();
  auto* labels = labels_.data_ptr<std::int64_t>();
  for (const CifarFile& file : files) {
    read_records(file, format, images, labels);
    images += file.records * kCifarPixels;
    labels += file.records;
  }
}

torch::data::Example<> CifarDataset::get(std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  return {images_[i].to(at::kFloat).div_(255), labels_[i]};
}

c10::optional<std::size_t> CifarDataset::size() const {
  return static_cast<std::size_t>(images_.size(0));
}

}  // namespace lockstep
