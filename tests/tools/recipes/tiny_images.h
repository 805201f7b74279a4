// SPDX-License-Identifier: BSD-3-Clause
// A data set in MNIST's format that a net learns within a few steps.
#pragma once

#include <random>

#include "data/idx_bytes.h"
#include "support/temporary_folder.h"

namespace lockstep::testing {

// Noise, with two bright rows whose place is the label.
inline void write_tiny_split(const TemporaryFolder& folder, const std::string& prefix,
                             std::uint32_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::string images = idx_header({count, 28, 28});
  std::string labels = idx_header({count});
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto label = random() % 10;
    labels += static_cast<char>(label);
    for (unsigned row = 0; row < 28; ++row) {
      for (unsigned column = 0; column < 28; ++column) {
        const bool bright = row / 2 == label + 2;
        images += static_cast<char>(random() % 60 + (bright ? 150 : 0));
      }
    }
  }
  folder.write(prefix + "-images-idx3-ubyte.gz", gzip(images));
  folder.write(prefix + "-labels-idx1-ubyte", labels);
}

// Odd numbers, so that two ranks need padding and the last batch is smaller.
inline void write_tiny_images(const TemporaryFolder& folder, std::uint32_t train_count = 301) {
  write_tiny_split(folder, "train", train_count, 1);
  write_tiny_split(folder, "t10k", 101, 2);
}

}  // namespace lockstep::testing
