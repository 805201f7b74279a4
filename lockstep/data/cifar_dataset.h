// SPDX-License-Identifier: BSD-3-Clause
// Public. CIFAR-10 and CIFAR-100, from the files of their "binary version".
#pragma once

#include <cstddef>
#include <filesystem>

#include <torch/data/datasets/base.h>

namespace lockstep {

// The archive, and the labels: 10 classes, 100 classes, or CIFAR-100's 20 superclasses.
enum class CifarKind { cifar10, cifar100, cifar100_coarse };
enum class CifarSplit { train, test };

// Reads all images of a split into memory: data_batch_1.bin to data_batch_5.bin, or test_batch.bin;
// for CIFAR-100, train.bin or test.bin. The folder is the one that has these files, or the one in
// which the archive was unpacked. Copies share the tensors.
//
// UsageErrors name the file, and say where to get the data if it is missing. The format has no
// checksum: a file is refused if its size is not a multiple of a record's, or if a label is out of
// range.
class CifarDataset : public torch::data::datasets::Dataset<CifarDataset> {
 public:
  explicit CifarDataset(const std::filesystem::path& folder, CifarKind kind = CifarKind::cifar10,
                        CifarSplit split = CifarSplit::train);

  // One image as float32 [3, 32, 32] from 0 to 1 (red, green, blue), and its label as int64 [].
  torch::data::Example<> get(std::size_t index) override;
  c10::optional<std::size_t> size() const override;

  // All samples: uint8 [N, 3, 32, 32] and int64 [N].
  const at::Tensor& images() const { return images_; }
  const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor images_;
  at::Tensor labels_;
};

}  // namespace lockstep
