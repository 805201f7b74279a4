// SPDX-License-Identifier: BSD-3-Clause
// A data set's size as an argument.
#pragma once

#include <concepts>
#include <cstddef>

#include <c10/util/Optional.h>

#include "lockstep/core/error.h"

namespace lockstep {

// Every data set of libtorch, also after map().
template <class D>
concept DatasetWithSize = requires(const D& dataset) {
  { dataset.size() } -> std::same_as<c10::optional<std::size_t>>;
};

// Takes both a data set and a number of samples. Does not keep the data set.
class DatasetSize {
 public:
  DatasetSize(std::size_t size) : size_(size) {}
  // UsageError if the data set does not know its size.
  template <DatasetWithSize D>
  DatasetSize(const D& dataset) : size_(known(dataset.size())) {}

  std::size_t get() const { return size_; }

 private:
  static std::size_t known(c10::optional<std::size_t> size) {
    if (size) return *size;
    throw UsageError(
        "the data set has no size, and a sampler needs one; give the number of samples instead, or "
        "let each rank take its batches from the loader with a ShardingFilter");
  }

  std::size_t size_;
};

}  // namespace lockstep
