// SPDX-License-Identifier: BSD-3-Clause
// Finds the files of a split, checks that they fit together, and reads them.
#include "lockstep/data/mnist_dataset.h"

#include <string>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/data_files.h"
#include "lockstep/data/idx_file.h"

namespace lockstep {
namespace {

constexpr const char* kGetData =
    "install the package dataset-fashion-mnist and name /usr/share/datasets/fashion-mnist, or put "
    "the four files of MNIST (train-images-idx3-ubyte.gz and so on) into a folder and name that";

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  const auto raw = folder / name;
  const auto zipped = folder / (name + ".gz");
  std::error_code ignored;
  if (std::filesystem::exists(raw, ignored)) return raw;
  if (std::filesystem::exists(zipped, ignored)) return zipped;
  throw UsageError(
      fmt::format("{}: neither {} nor {}.gz is there; {}", folder.string(), name, name, kGetData));
}

void require_dimensions(const IdxFile& file, std::size_t expected,
                        const std::filesystem::path& path) {
  if (file.dimensions().size() == expected) return;
  throw UsageError(
      fmt::format("{}: the file has {} dimensions, but {} are expected; is it another file under "
                  "this name?",
                  path.string(), file.dimensions().size(), expected));
}

// Both files of a split; only their headers have been read.
struct Split {
  Split(const std::filesystem::path& folder, const std::string& prefix)
      : images_path(find_file(folder, prefix + "-images-idx3-ubyte")),
        labels_path(find_file(folder, prefix + "-labels-idx1-ubyte")),
        images(images_path),
        labels(labels_path) {
    require_dimensions(images, 3, images_path);
    require_dimensions(labels, 1, labels_path);
    if (images.dimensions()[0] == labels.dimensions()[0]) return;
    throw UsageError(
        fmt::format("{} holds {} images, but {} holds {} labels; take both from the "
                    "same data set",
                    images_path.string(), images.dimensions()[0], labels_path.string(),
                    labels.dimensions()[0]));
  }

  std::filesystem::path images_path;
  std::filesystem::path labels_path;
  IdxFile images;
  IdxFile labels;
};

const char* prefix_of(MnistSplit split) {
  return split == MnistSplit::train ? "train" : "t10k";
}

}  // namespace

void require_data_folder(const std::filesystem::path& folder) {
  require_folder(folder, kGetData);
}

MnistDataset::MnistDataset(const std::filesystem::path& folder, MnistSplit split) {
  require_data_folder(folder);
  Split files(folder, prefix_of(split));
  images_ = files.images.read();
  labels_ = files.labels.read().to(at::kLong);
}

MnistShape mnist_shape(const std::filesystem::path& folder, MnistSplit split) {
  require_data_folder(folder);
  const Split files(folder, prefix_of(split));
  const auto& sizes = files.images.dimensions();
  return {sizes[0], sizes[1], sizes[2]};
}

torch::data::Example<> MnistDataset::get(std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  return {images_[i].unsqueeze(0).to(at::kFloat).div_(255), labels_[i]};
}

c10::optional<std::size_t> MnistDataset::size() const {
  return static_cast<std::size_t>(images_.size(0));
}

}  // namespace lockstep
