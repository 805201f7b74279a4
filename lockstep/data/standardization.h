// SPDX-License-Identifier: BSD-3-Clause
// Public. Scales images, or each feature of rows of numbers, to mean 0 and standard deviation 1,
// with bitwise equal statistics on every rank and for any number of ranks and threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group_argument.h"

namespace lockstep {

struct Standardization {
  // The mean and the standard deviation of all bytes of all training images, in units of a byte (0
  // to 255).
  double mean = 0;
  double deviation = 1;

  // (images - mean) / deviation as float32, in the images' shape. Test images are scaled with the
  // statistics of the training images.
  at::Tensor apply(const at::Tensor& images) const;
};

// Collective: every rank passes the same uint8 images, of any shape with the samples first, and
// counts its share of them. Sums are integers, so neither their order nor the number of ranks
// affects the result. If all bytes are equal, the deviation is 1. UsageError if there are no images
// or they are not uint8.
Standardization measure_standardization(const at::Tensor& images, GroupArgument group);

// One mean and one deviation per feature. To apply them at inference, keep both tensors with the
// model.
struct FeatureStandardization {
  at::Tensor mean;       // float64 on the CPU, of one row's shape
  at::Tensor deviation;  // the same; 1 where all rows are equal

  // (rows - mean) / deviation as float32, computed in float64. `rows` is one row or several.
  at::Tensor apply(const at::Tensor& rows) const;
};

// Collective: every rank passes the same rows, of any shape with the samples first and of a real
// type, and sums up its share of them. The deviation is the population's, as in scikit-learn's
// StandardScaler. UsageError if there are no rows, if their type is not real, or if a feature is
// infinite or NaN somewhere.
FeatureStandardization measure_feature_standardization(const at::Tensor& rows, GroupArgument group);

}  // namespace lockstep
