// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/data/idx_dataset.h"

#include <string>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/idx_file.h"

namespace lockstep {
namespace {

constexpr const char* way_out =
    "install the package dataset-fashion-mnist and name /usr/share/datasets/fashion-mnist, or put "
    "the four files of MNIST (train-images-idx3-ubyte.gz and so on) into a folder and name that";

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  const auto raw = folder / name;
  const auto zipped = folder / (name + ".gz");
  std::error_code ignored;
  if (std::filesystem::exists(raw, ignored)) return raw;
  if (std::filesystem::exists(zipped, ignored)) return zipped;
  throw UsageError(
      fmt::format("{}: neither {} nor {}.gz is there; {}", folder.string(), name, name, way_out));
}

at::Tensor read_array(const std::filesystem::path& path, std::int64_t dimensions) {
  at::Tensor array = read_idx_file(path);
  if (array.dim() != dimensions) {
    throw UsageError(
        fmt::format("{}: it has {} dimensions, {} are expected of it; is it in the "
                    "place of another file?",
                    path.string(), array.dim(), dimensions));
  }
  return array;
}

}  // namespace

void require_data_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return;
  throw UsageError(fmt::format("{}: there is no such data folder; {}", folder.string(), way_out));
}

IdxDataset::IdxDataset(const std::filesystem::path& folder, IdxSplit split) {
  require_data_folder(folder);
  const std::string prefix = split == IdxSplit::train ? "train" : "t10k";
  const auto images = find_file(folder, prefix + "-images-idx3-ubyte");
  const auto labels = find_file(folder, prefix + "-labels-idx1-ubyte");
  images_ = read_array(images, 3);
  labels_ = read_array(labels, 1).to(at::kLong);
  if (images_.size(0) != labels_.size(0)) {
    throw UsageError(
        fmt::format("{} holds {} images, but {} holds {} labels; take both from the "
                    "same data set",
                    images.string(), images_.size(0), labels.string(), labels_.size(0)));
  }
}

torch::data::Example<> IdxDataset::get(std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  return {images_[i].unsqueeze(0).to(at::kFloat).div_(255), labels_[i]};
}

c10::optional<std::size_t> IdxDataset::size() const {
  return static_cast<std::size_t>(images_.size(0));
}

}  // namespace lockstep
