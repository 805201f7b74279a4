// SPDX-License-Identifier: BSD-3-Clause
// Public. MNIST, and data sets in its format such as Fashion-MNIST and KMNIST.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include <torch/data/datasets/base.h>

namespace lockstep {

enum class MnistSplit { train, test };

// Reads {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, each plain or with the
// suffix .gz, from one folder into memory. Copies share the tensors. UsageErrors name the file and,
// for a missing folder, where to get the data.
class MnistDataset : public torch::data::datasets::Dataset<MnistDataset> {
 public:
  explicit MnistDataset(const std::filesystem::path& folder, MnistSplit split = MnistSplit::train);

  // Returns one image as float32 [1, H, W] from 0 to 1, and its label as int64 [], like torch's
  // MNIST.
  torch::data::Example<> get(std::size_t index) override;
  c10::optional<std::size_t> size() const override;

  // All samples: uint8 [N, H, W] and int64 [N].
  const at::Tensor& images() const { return images_; }
  const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor images_;
  at::Tensor labels_;
};

// The shape of a split's images.
struct MnistShape {
  std::int64_t images;
  std::int64_t height;
  std::int64_t width;

  std::int64_t pixels() const { return images * height * width; }
};
// Reads the shape from the headers, with MnistDataset's checks, before memory is allocated.
MnistShape mnist_shape(const std::filesystem::path& folder, MnistSplit split);

// Former names.
using IdxDataset [[deprecated("its name is lockstep::MnistDataset")]] = MnistDataset;
using IdxSplit [[deprecated("its name is lockstep::MnistSplit")]] = MnistSplit;
using IdxShape [[deprecated("its name is lockstep::MnistShape")]] = MnistShape;

// UsageError, saying where to get the data, unless the folder exists.
void require_data_folder(const std::filesystem::path& folder);

}  // namespace lockstep
