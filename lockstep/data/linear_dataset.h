// SPDX-License-Identifier: BSD-3-Clause
// Public. Points on a noisy line, y = slope x + intercept + noise: a data set for linear regression
// that needs no files and has a known answer.
#pragma once

#include <cstddef>
#include <cstdint>

#include <torch/data/datasets/base.h>

namespace lockstep {

struct LinearDatasetOptions {
  std::int64_t size = 10'000;
  double slope = 2;
  double intercept = 3;
  // Standard deviation of the Gaussian noise on y.
  double noise = 0.1;
  std::uint64_t seed = 0;
};

// x is drawn from N(0, 1). The same options give the same points in every process. Copies share the
// tensors.
class LinearDataset : public torch::data::datasets::Dataset<LinearDataset> {
 public:
  explicit LinearDataset(const LinearDatasetOptions& options = {});

  // Returns x and y of one point, each float32 [1].
  torch::data::Example<> get(std::size_t index) override;
  c10::optional<std::size_t> size() const override;

  // All points, float32 [size, 1].
  const at::Tensor& inputs() const { return inputs_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

}  // namespace lockstep
