// SPDX-License-Identifier: BSD-3-Clause
// Decides which gradients share a bucket, and their offsets in it. A pure function: every rank that
// knows the order of readiness computes the same plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "lockstep/tensor/piece.h"

namespace lockstep {

// The plan's input for one parameter.
struct GradientSize {
  std::int64_t elements = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
};

// In bytes. As in PyTorch, the gradient that reaches the limit closes the bucket, so a bucket may
// exceed the limit by one gradient. The first bucket of each type and device is small, so that
// reducing starts early.
struct BucketLimits {
  std::int64_t first = 1 << 20;
  std::int64_t others = 25 << 20;
};

// How many elements a bucket has for UpdateCount.
inline constexpr int kUpdateCodes = 8;

struct PlannedBucket {
  // In the order in which their gradients become ready.
  std::vector<int> parameters;
  // Where each gradient starts, in elements; always at a multiple of 64 bytes.
  std::vector<std::int64_t> offsets;
  // Where the trailer starts, in elements. It has one element per parameter, and kUpdateCodes more.
  std::int64_t trailer = 0;
  // The total length, in elements.
  std::int64_t elements = 0;
};

// ready_order contains each index of `gradients` once, the first to become ready in front. All
// gradients of a bucket have one type and one device. The buckets are in the order in which they
// become complete.
std::vector<PlannedBucket> plan_buckets(std::span<const GradientSize> gradients,
                                        std::span<const int> ready_order, BucketLimits limits);

// What one of `size` ranks owns of a bucket whose elements have this size in bytes: equal shares,
// in rank order, of whole cache lines. The last shares may reach beyond the bucket's end.
ElementRange share_of_rank(const PlannedBucket& bucket, std::int64_t element_size, int rank,
                           int size);

}  // namespace lockstep
