// SPDX-License-Identifier: BSD-3-Clause
// Quantiles of measurements.
#include "tools/bench/measurements.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

TEST(Quantile, IsAMeasurement) {
  const std::vector<double> measurements{5, 1, 4, 2, 3};
  EXPECT_EQ(quantile(measurements, 0), 1);
  EXPECT_EQ(median(measurements), 3);
  EXPECT_EQ(quantile(measurements, 0.9), 5);
  EXPECT_EQ(quantile(measurements, 1), 5);
  EXPECT_EQ(median(std::vector<double>{7}), 7);
}

}  // namespace
}  // namespace lockstep::bench
