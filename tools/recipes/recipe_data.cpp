// SPDX-License-Identifier: BSD-3-Clause
// Checks sizes, memory and labels, standardizes images, and compares what the ranks have.
#include "tools/recipes/recipe_data.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/data/data_files.h"
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

constexpr const char* kTrainFolder = "train";
constexpr const char* kTestFolder = "val";

// The mean and standard deviation of each channel of ImageNet's images, from 0 to 1, with which
// torchvision's models were trained.
constexpr std::array<double, 3> kMean{0.485, 0.456, 0.406};
constexpr std::array<double, 3> kDeviation{0.229, 0.224, 0.225};

// The size to which images are scaled before `size` rows and columns of them are cut out: 256 for
// 224, as is usual for ImageNet.
std::int64_t scaled_size(std::int64_t size) {
  return size * 8 / 7;
}

BatchTransform center_crop(std::int64_t size) {
  return [size](torch::data::Example<>& batch, const BatchOrigin&) {
    const std::int64_t margin = (batch.data.size(2) - size) / 2;
    batch.data = batch.data.narrow(2, margin, size).narrow(3, margin, size);
  };
}

BatchTransform normalize_channels() {
  return normalize({kMean.begin(), kMean.end()}, {kDeviation.begin(), kDeviation.end()});
}

// UsageError if one split has a class that the other one lacks, which would shift the numbers of
// the classes behind it.
void require_same_classes(const ImageFiles& files, const std::filesystem::path& folder) {
  const auto& train = files.train.classes();
  const auto& test = files.test.classes();
  std::vector<std::string> in_one_only;
  std::ranges::set_symmetric_difference(train, test, std::back_inserter(in_one_only));
  if (in_one_only.empty()) return;
  const std::string& name = in_one_only.front();
  const bool in_train = std::ranges::binary_search(train, name);
  throw UsageError(fmt::format(
      "{}: class \"{}\" is in {}, but not in {}; give both the same classes", folder.string(), name,
      in_train ? kTrainFolder : kTestFolder, in_train ? kTestFolder : kTrainFolder));
}

// The facts in which ranks must agree, one on each line.
std::string facts_about(const ImageFiles& files) {
  std::string facts = fmt::format("{} classes\n", files.train.classes().size());
  for (const std::string& name : files.train.classes())
    facts += fmt::format("class \"{}\"\n", name);
  return facts + fmt::format("{} images in {}\n{} images in {}\n", files.train.size().value(),
                             kTrainFolder, files.test.size().value(), kTestFolder);
}

// Ranks on several machines may find different files under one path.
void require_same_images(const ImageFiles& files, const std::filesystem::path& folder,
                         ProcessGroup& group) {
  const auto facts = all_gather_object(std::string_view(facts_about(files)), group);
  for (std::size_t rank = 1; rank < facts.size(); ++rank) {
    if (facts[rank] == facts[0]) continue;
    std::istringstream of_first(facts[0]);
    std::istringstream of_other(facts[rank]);
    std::string first;
    std::string other;
    while (first == other && std::getline(of_first, first)) std::getline(of_other, other);
    throw UsageError(
        fmt::format("{}: rank 0 has {} where rank {} has {}; give all machines the same files",
                    folder.string(), first, rank, other));
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

bool has_image_folders(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::is_directory(folder / kTrainFolder, ignored) ||
         std::filesystem::is_directory(folder / kTestFolder, ignored);
}

void require_images(const std::filesystem::path& folder) {
  require_folder(folder,
                 fmt::format("name a folder with subfolders {} and {}, which have a folder of JPEG "
                             "and PNG files for each class, or one with the files of a data set in "
                             "MNIST's format, such as /usr/share/datasets/fashion-mnist (package "
                             "dataset-fashion-mnist)",
                             kTrainFolder, kTestFolder));
  std::error_code ignored;
  if (has_image_folders(folder)) {
    for (const char* split : {kTrainFolder, kTestFolder}) {
      if (std::filesystem::is_directory(folder / split, ignored)) continue;
      throw UsageError(fmt::format(
          "{}: there is no folder {}; put a subfolder with images for each class into it",
          folder.string(), split));
    }
    return;
  }
  for (const char* name : {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"}) {
    if (std::filesystem::exists(folder / name, ignored)) return;
  }
  throw UsageError(fmt::format(
      "{}: the folder has neither subfolders {} and {}, with a folder of JPEG and PNG files for "
      "each class, nor the file train-images-idx3-ubyte of a data set in MNIST's format; name the "
      "folder that has them",
      folder.string(), kTrainFolder, kTestFolder));
}

TrainingData load_image_files(const std::filesystem::path& folder, std::int64_t image_size,
                              ProcessGroup& group) {
  const ImageFolderOptions options{.height = scaled_size(image_size),
                                   .width = scaled_size(image_size),
                                   .damaged = DamagedImages::skip};
  ImageFiles files{
      .train = ImageFolder(folder / kTrainFolder, options),
      .test = ImageFolder(folder / kTestFolder, options),
      .train_transforms = {random_crop({.height = image_size, .width = image_size}),
                           random_horizontal_flip(), normalize_channels()},
      .test_transforms = {center_crop(image_size), normalize_channels()},
  };
  require_same_classes(files, folder);
  require_same_images(files, folder, group);
  TrainingData data;
  data.statistics = {
      {"standardization.mean", at::tensor(at::ArrayRef<double>(kMean), at::kDouble)},
      {"standardization.deviation", at::tensor(at::ArrayRef<double>(kDeviation), at::kDouble)}};
  data.files = std::move(files);
  return data;
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

RecipeLoader training_loader(const TrainingData& data, std::unique_ptr<EpochSampler> sampler,
                             DataLoaderOptions options) {
  if (!data.files) {
    return MemoryLoader(data.inputs, data.targets, std::move(sampler),
                        {.batch_size = options.batch_size, .device = options.device});
  }
  options.transforms = data.files->train_transforms;
  return DataLoader(data.files->train, std::move(sampler), options);
}

RecipeLoader test_loader(const TrainingData& data, const DistributedSampler& sampler,
                         DataLoaderOptions options) {
  if (!data.files) {
    return MemoryLoader(data.test_inputs, data.test_targets, sampler,
                        {.batch_size = options.batch_size, .device = options.device});
  }
  options.transforms = data.files->test_transforms;
  return DataLoader(data.files->test, sampler, options);
}

}  // namespace lockstep
