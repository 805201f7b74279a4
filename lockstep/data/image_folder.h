// SPDX-License-Identifier: BSD-3-Clause
// Public. Images in a folder with a subfolder for each class, like torchvision's ImageFolder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <torch/data/datasets/base.h>

namespace lockstep {

// What get() does with a file that is not a whole image, or has more than 100 million pixels.
//   refuse  throws a UsageError that names the file
//   skip    returns the next whole image of its class in its place, so that epochs and batches stay
//           the same on every rank, and warns once for each such file, naming it
enum class DamagedImages { refuse, skip };

struct ImageFolderOptions {
  // The size of all samples: the largest rectangle of this shape in an image's middle is scaled to
  // it (bilinear, with antialiasing). Both 0: images keep their size, and can be batched only if
  // all have the same.
  std::int64_t height = 0;
  std::int64_t width = 0;
  DamagedImages damaged = DamagedImages::refuse;
};

// The files FOLDER/CLASS/.../NAME.jpg, .jpeg and .png (in upper or lower case); others are left
// out. Classes are numbered in the order of their names, and samples ordered by class, subfolder
// and name, both as by torchvision. Symbolic links to files and to classes' folders are followed.
//
// The constructor lists the files and opens none; get() reads one. JPEG needs a Lockstep that was
// built with libjpeg, PNG one with libpng: BackendError otherwise. EXIF, and with it the
// orientation of photographs, is ignored. Files may be hostile. Copies share the list; get() may be
// called from any thread, on a copy of its own.
//
// UsageErrors name the folder: it is missing, has no classes, or has a class without an image.
class ImageFolder : public torch::data::datasets::Dataset<ImageFolder> {
 public:
  explicit ImageFolder(const std::filesystem::path& folder, const ImageFolderOptions& options = {});

  // One image as float32 [3, H, W] from 0 to 1 (red, green, blue), and its class as int64 [].
  torch::data::Example<> get(std::size_t index) override;
  c10::optional<std::size_t> size() const override;

  // The names of the classes; a sample's target is a position in it.
  const std::vector<std::string>& classes() const;
  const std::filesystem::path& path(std::size_t index) const;

 private:
  struct Files;

  std::shared_ptr<Files> files_;
  ImageFolderOptions options_;
};

}  // namespace lockstep
