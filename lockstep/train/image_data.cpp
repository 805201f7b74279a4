// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/image_data.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/idx_dataset.h"
#include "lockstep/data/standardization.h"

namespace lockstep {
namespace {

constexpr std::int64_t side = 28;
constexpr std::int64_t classes = 10;

void check(const IdxDataset& set, const std::filesystem::path& folder, const char* split) {
  const auto& images = set.images();
  if (images.size(0) == 0 || images.size(1) != side || images.size(2) != side) {
    throw UsageError(fmt::format(
        "{}: the {} set has {} images of {} x {}; the recipes take images "
        "of {} x {}, at least one",
        folder.string(), split, images.size(0), images.size(1), images.size(2), side, side));
  }
  const auto largest = set.labels().max().item<std::int64_t>();
  if (largest >= classes) {
    throw UsageError(fmt::format("{}: the {} set has a label {}; the recipes take labels 0 to {}",
                                 folder.string(), split, largest, classes - 1));
  }
}

}  // namespace

TrainingData load_images(const std::filesystem::path& folder, ProcessGroup& group) {
  const IdxDataset train(folder, IdxSplit::train);
  const IdxDataset test(folder, IdxSplit::test);
  check(train, folder, "training");
  check(test, folder, "test");
  const auto standardization = measure_standardization(train.images(), group);
  return {.inputs = standardization.apply(train.images()).unsqueeze(1),
          .targets = train.labels(),
          .test_inputs = standardization.apply(test.images()).unsqueeze(1),
          .test_targets = test.labels()};
}

}  // namespace lockstep
