// SPDX-License-Identifier: BSD-3-Clause
// Which gradients share a bucket, and where in it they lie. A pure function, so that every rank
// that knows the order of readiness computes the same plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

// What the plan needs to know of one parameter.
struct GradientSize {
  std::int64_t elements = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
};

// In bytes. A bucket is closed by the gradient with which it reaches its limit, so it may be larger
// by one gradient; as PyTorch does it. The first bucket of each type and device is small, so that
// reducing starts early.
struct BucketLimits {
  std::int64_t first = 1 << 20;
  std::int64_t others = 25 << 20;
};

struct PlannedBucket {
  // Parameters, in the order in which their gradients become ready.
  std::vector<int> parameters;
  // Where each of their gradients starts, in elements. Each starts at a multiple of 64 bytes.
  std::vector<std::int64_t> offsets;
  // Where the trailer starts, in elements: one element for each of the parameters.
  std::int64_t trailer = 0;
  // The whole length, in elements.
  std::int64_t elements = 0;
};

// ready_order names each index of gradients once, the first to become ready in front. Gradients in
// a bucket have one type and one device. The buckets come in the order in which they are complete.
std::vector<PlannedBucket> plan_buckets(std::span<const GradientSize> gradients,
                                        std::span<const int> ready_order, BucketLimits limits);

}  // namespace lockstep
