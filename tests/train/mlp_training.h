// SPDX-License-Identifier: BSD-3-Clause
// A small net and six batches, on which the tests of the Trainer train, on one rank or several.
#pragma once

#include <vector>

#include "tests/parallel/models.h"
#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::testing {

struct Batch {
  at::Tensor data;
  at::Tensor target;
};

// A rank's part of six batches of twelve samples.
inline std::vector<Batch> batches(int rank, int ranks) {
  std::vector<Batch> made;
  for (int i = 0; i < 6; ++i) {
    made.push_back(
        {part(values({12, 6}, i), rank, ranks), part(values({12, 3}, i + 0.5), rank, ranks)});
  }
  return made;
}

inline constexpr auto mse = [](auto& model, auto& batch) {
  return at::mse_loss(model(batch.data), batch.target);
};

inline Mlp new_net() {
  Mlp net;
  set_weights(*net, 3);
  return net;
}

inline void expect_close(const Mlp& one, const Mlp& other) {
  for (const auto& item : other->named_parameters()) {
    EXPECT_TRUE(at::allclose(one->named_parameters()[item.key()], item.value(), 1e-4, 1e-6))
        << item.key();
  }
}

}  // namespace lockstep::testing
