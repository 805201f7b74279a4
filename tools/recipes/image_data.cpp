// SPDX-License-Identifier: BSD-3-Clause
// Checks sizes, memory and labels of both splits, and standardizes the images.
#include "tools/recipes/image_data.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/data/mnist_dataset.h"
#include "lockstep/data/standardization.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kClasses = 10;

void check(const MnistShape& shape, const std::filesystem::path& folder, const char* split) {
  if (shape.images > 0 && shape.height == kSide && shape.width == kSide) return;
  throw UsageError(
      fmt::format("{}: the {} set has {} images of {} x {}; the recipes take images "
                  "of {} x {}, at least one",
                  folder.string(), split, shape.images, shape.height, shape.width, kSide, kSide));
}

// UsageError unless both splits fit into memory, as bytes and as floats. Each rank checks this for
// itself, since other ranks of this machine may have allocated their part already.
void require_memory(std::int64_t pixels, const std::filesystem::path& folder) {
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

}  // namespace

TrainingData load_images(const std::filesystem::path& folder, ProcessGroup& group) {
  const MnistShape train_shape = mnist_shape(folder, MnistSplit::train);
  const MnistShape test_shape = mnist_shape(folder, MnistSplit::test);
  check(train_shape, folder, "training");
  check(test_shape, folder, "test");
  require_memory(train_shape.pixels() + test_shape.pixels(), folder);
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

}  // namespace lockstep
