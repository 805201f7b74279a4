// SPDX-License-Identifier: BSD-3-Clause
// Lists the files of each class, and reads one of them as a sample.
#include "lockstep/data/image_folder.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/data_files.h"
#include "lockstep/data/image_file.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

constexpr const char* kImageSource =
    "make one with a subfolder of JPEG or PNG files for each class, as ImageNet "
    "(https://image-net.org) has, or name the folder of the training images of such a data set";

[[noreturn]] void throw_unreadable(const std::filesystem::path& folder,
                                   const std::error_code& error) {
  throw UsageError(
      fmt::format("{}: the folder cannot be read: {}", folder.string(), error.message()));
}

std::vector<std::string> class_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code vanished;
    if (entry->is_directory(vanished)) names.push_back(entry->path().filename().string());
  }
  if (error) throw_unreadable(folder, error);
  if (names.empty()) {
    throw UsageError(
        fmt::format("{}: the folder has no subfolders; {}", folder.string(), kImageSource));
  }
  std::ranges::sort(names);
  return names;
}

// In the order of os.walk, sorted: first by folder, then by name.
std::vector<std::filesystem::path> images_below(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> images;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(error)) {
    std::error_code vanished;
    if (has_image_name(entry->path()) && entry->is_regular_file(vanished)) {
      images.push_back(entry->path());
    }
  }
  if (error) throw_unreadable(folder, error);
  if (images.empty()) {
    throw UsageError(fmt::format(
        "{}: this class has no .jpg, .jpeg or .png file; add images, or remove the folder",
        folder.string()));
  }
  const auto key = [](const std::filesystem::path& path) {
    return std::pair(path.parent_path().string(), path.filename().string());
  };
  std::ranges::sort(images, {}, key);
  return images;
}

// The largest rectangle of the shape in the middle of the image, scaled to it. Cut first: an image
// of one row would become very wide. float [3, H, W] both.
at::Tensor scaled(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  const auto share = [](std::int64_t length, std::int64_t of, std::int64_t most) {
    const double cut =
        static_cast<double>(length) * static_cast<double>(of) / static_cast<double>(most);
    return std::max<std::int64_t>(1, std::llround(cut));
  };
  const std::int64_t rows = std::min(image.size(1), share(image.size(2), height, width));
  const std::int64_t columns = std::min(image.size(2), share(image.size(1), width, height));
  const at::Tensor middle = image.narrow(1, (image.size(1) - rows) / 2, rows)
                                .narrow(2, (image.size(2) - columns) / 2, columns)
                                .unsqueeze(0)
                                .contiguous();
  return at::_upsample_bilinear2d_aa(middle, {height, width}, /*align_corners=*/false).squeeze(0);
}

}  // namespace

struct ImageFolder::Files {
  std::vector<std::string> classes;
  std::vector<std::filesystem::path> paths;
  // Each class's first sample; one more at the end.
  std::vector<std::size_t> first;

  // The samples of which a warning has been given.
  std::mutex mutex;
  std::set<std::size_t> damaged;

  std::size_t class_of(std::size_t index) const {
    const auto next = std::ranges::upper_bound(first, index);
    return static_cast<std::size_t>(next - first.begin()) - 1;
  }

  void warn_of(std::size_t index, const std::exception& error) {
    {
      const std::lock_guard lock(mutex);
      if (!damaged.insert(index).second) return;
    }
    libtorch::warn("ImageFolder", fmt::format("{}. It is skipped: another image of its class takes "
                                              "its place.",
                                              error.what()));
  }
};

ImageFolder::ImageFolder(const std::filesystem::path& folder, const ImageFolderOptions& options)
    : files_(std::make_shared<Files>()), options_(options) {
  if (options_.height < 0 || (options_.height == 0) != (options_.width == 0) ||
      (options_.height > 0 && options_.width < 0) ||
      (options_.width > 0 && options_.height > kMostImagePixels / options_.width)) {
    throw UsageError(fmt::format(
        "ImageFolder: height is {} and width {}; give both, with at most {} pixels together, or "
        "neither",
        options_.height, options_.width, kMostImagePixels));
  }
  require_folder(folder, kImageSource);
  files_->classes = class_names(folder);
  for (const std::string& name : files_->classes) {
    files_->first.push_back(files_->paths.size());
    for (auto& path : images_below(folder / name)) files_->paths.push_back(std::move(path));
  }
  files_->first.push_back(files_->paths.size());
}

torch::data::Example<> ImageFolder::get(std::size_t index) {
  static_cast<void>(path(index));  // UsageError for an index out of range
  const std::size_t own_class = files_->class_of(index);
  const std::size_t first = files_->first[own_class];
  const std::size_t count = files_->first[own_class + 1] - first;
  const auto as_sample = [&](const at::Tensor& pixels) -> torch::data::Example<> {
    at::Tensor image = pixels.permute({2, 0, 1}).to(at::kFloat).div_(255).contiguous();
    if (options_.height > 0) image = scaled(image, options_.height, options_.width);
    return {image,
            at::scalar_tensor(static_cast<std::int64_t>(own_class), at::TensorOptions(at::kLong))};
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t candidate = first + (index - first + i) % count;
    try {
      return as_sample(read_image(files_->paths[candidate]));
    } catch (const DamagedImage& error) {
      if (options_.damaged == DamagedImages::refuse) throw;
      files_->warn_of(candidate, error);
    }
  }
  throw UsageError(fmt::format("{}: no image of this class can be read; restore its files",
                               files_->paths[first].parent_path().string()));
}

c10::optional<std::size_t> ImageFolder::size() const {
  return files_->paths.size();
}

const std::vector<std::string>& ImageFolder::classes() const {
  return files_->classes;
}

const std::filesystem::path& ImageFolder::path(std::size_t index) const {
  if (index < files_->paths.size()) return files_->paths[index];
  throw UsageError(
      fmt::format("ImageFolder: there is no sample {}; there are {}", index, files_->paths.size()));
}

}  // namespace lockstep
