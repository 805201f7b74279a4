// SPDX-License-Identifier: BSD-3-Clause
// Checks sizes, memory and labels, standardizes images, and compares the texts of the ranks.
#include "tools/recipes/recipe_data.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/data/mnist_dataset.h"
#include "lockstep/data/standardization.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kClasses = 10;

void check_shape(const MnistShape& shape, const std::filesystem::path& folder, const char* split) {
  if (shape.images > 0 && shape.height == kSide && shape.width == kSide) return;
  throw UsageError(
      fmt::format("{}: the {} set has {} images of {} x {}; the recipes take images "
                  "of {} x {}, at least one",
                  folder.string(), split, shape.images, shape.height, shape.width, kSide, kSide));
}

// UsageError unless both splits fit into memory, as bytes and as floats. Each rank checks this for
// itself, since other ranks of this machine may have allocated their part already.
void require_memory_for_images(std::int64_t pixels, const std::filesystem::path& folder) {
  const std::int64_t needed = pixels * static_cast<std::int64_t>(1 + sizeof(float));
  const std::int64_t available = available_memory();
  if (needed <= available) return;
  throw UsageError(fmt::format(
      "{}: its images take {:.1f} MiB as bytes and floats, more than the {:.1f} MiB of memory that "
      "are available; name a smaller data set, or start fewer ranks",
      folder.string(), static_cast<double>(needed) / 0x1p20,
      static_cast<double>(available) / 0x1p20));
}

void check_labels(const MnistDataset& set, const std::filesystem::path& folder, const char* split) {
  const auto largest = set.labels().max().item<std::int64_t>();
  if (largest >= kClasses) {
    throw UsageError(fmt::format("{}: the {} set has a label {}; the recipes take labels 0 to {}",
                                 folder.string(), split, largest, kClasses - 1));
  }
}

// One of these windows is the test set.
constexpr std::int64_t kFewestWindows = 10;
constexpr std::int64_t kFewestBytes = kFewestWindows * kTextWindow + 1;

struct TextFiles {
  std::vector<std::filesystem::path> paths;
  std::int64_t bytes = 0;
};

std::vector<std::filesystem::path> regular_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code vanished;
    if (std::filesystem::is_regular_file(entry->symlink_status(vanished))) {
      files.push_back(entry->path());
    }
  }
  if (error) {
    throw UsageError(
        fmt::format("{}: the folder cannot be read: {}", folder.string(), error.message()));
  }
  if (files.empty()) {
    throw UsageError(
        fmt::format("{}: the folder holds no regular file; put text files into it, or name a file",
                    folder.string()));
  }
  std::ranges::sort(files);  // the same text on every rank
  return files;
}

// Adds up the sizes. Files with holes may exceed every memory.
TextFiles find_text(const std::filesystem::path& path) {
  std::error_code ignored;
  TextFiles text;
  text.paths = std::filesystem::is_directory(path, ignored)
                   ? regular_files_in(path)
                   : std::vector<std::filesystem::path>{path};
  const std::int64_t available = available_memory();
  for (const auto& file : text.paths) {
    const auto size = static_cast<std::int64_t>(bytes_in_file(file).size);
    if (size > available - text.bytes) {
      throw UsageError(fmt::format(
          "{}: with this file of {:.1f} MiB the text takes more than the {:.1f} MiB of memory that "
          "are available; name less text, or start fewer ranks",
          file.string(), static_cast<double>(size) / 0x1p20,
          static_cast<double>(available) / 0x1p20));
    }
    text.bytes += size;
  }
  if (text.bytes >= kFewestBytes) return text;
  throw UsageError(
      fmt::format("{}: the text has {} byte{}, but at least {} are needed; name a longer text",
                  path.string(), text.bytes, text.bytes == 1 ? "" : "s", kFewestBytes));
}

at::Tensor read_text(const TextFiles& text) {
  at::Tensor bytes = at::empty({text.bytes}, at::kByte);
  std::span rest(reinterpret_cast<std::byte*>(bytes.data_ptr<std::uint8_t>()),
                 static_cast<std::size_t>(text.bytes));
  const std::filesystem::path* last = nullptr;
  for (const auto& path : text.paths) {
    const StoredBytes file = bytes_in_file(path);
    last = &path;
    if (file.size > rest.size()) break;
    file.read(0, rest.first(file.size));
    rest = rest.subspan(file.size);
    if (&path == &text.paths.back() && rest.empty()) return bytes;
  }
  throw UsageError(
      fmt::format("{}: the size of this file or of one before it has changed since "
                  "it was listed; start again when no program writes to the text",
                  last->string()));
}

// FNV-1a.
std::uint64_t hash_of(const at::Tensor& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto* begin = bytes.data_ptr<std::uint8_t>();
  for (const auto* byte = begin; byte != begin + bytes.numel(); ++byte) {
    hash = (hash ^ *byte) * 0x100000001b3;
  }
  return hash;
}

// Ranks on several machines may find different files under one path.
void require_same_text(const at::Tensor& bytes, const std::filesystem::path& path,
                       ProcessGroup& group) {
  if (group.size() == 1) return;
  struct Text {
    std::int64_t bytes;
    std::uint64_t hash;
  };
  const auto texts = all_gather_object(Text{bytes.numel(), hash_of(bytes)}, group);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank].bytes == texts[0].bytes && texts[rank].hash == texts[0].hash) continue;
    throw UsageError(fmt::format(
        "{}: rank 0 has a text of {} bytes, rank {} another one of {} bytes; give all machines the "
        "same files",
        path.string(), texts[0].bytes, rank, texts[rank].bytes));
  }
}

}  // namespace

TrainingData load_images(const std::filesystem::path& folder, ProcessGroup& group) {
  const MnistShape train_shape = mnist_shape(folder, MnistSplit::train);
  const MnistShape test_shape = mnist_shape(folder, MnistSplit::test);
  check_shape(train_shape, folder, "training");
  check_shape(test_shape, folder, "test");
  require_memory_for_images(train_shape.pixels() + test_shape.pixels(), folder);
  const MnistDataset train(folder, MnistSplit::train);
  const MnistDataset test(folder, MnistSplit::test);
  check_labels(train, folder, "training");
  check_labels(test, folder, "test");
  const auto standardization = measure_standardization(train.images(), group);
  return {
      .inputs = standardization.apply(train.images()).unsqueeze(1),
      .targets = train.labels(),
      .test_inputs = standardization.apply(test.images()).unsqueeze(1),
      .test_targets = test.labels(),
      .statistics = {{"standardization.mean", at::scalar_tensor(standardization.mean, at::kDouble)},
                     {"standardization.deviation",
                      at::scalar_tensor(standardization.deviation, at::kDouble)}}};
}

void require_text(const std::filesystem::path& path) {
  find_text(path);
}

TrainingData load_text(const std::filesystem::path& path, ProcessGroup& group) {
  const at::Tensor bytes = read_text(find_text(path));
  require_same_text(bytes, path, group);
  const std::int64_t windows = (bytes.numel() - 1) / kTextWindow;
  const std::int64_t tests = windows / kFewestWindows;
  const auto cut = [&](std::int64_t first_byte) {
    return bytes.narrow(0, first_byte, windows * kTextWindow).view({windows, kTextWindow});
  };
  const at::Tensor inputs = cut(0);
  const at::Tensor targets = cut(1);
  return {.inputs = inputs.narrow(0, 0, windows - tests),
          .targets = targets.narrow(0, 0, windows - tests),
          .test_inputs = inputs.narrow(0, windows - tests, tests),
          .test_targets = targets.narrow(0, windows - tests, tests)};
}

}  // namespace lockstep
