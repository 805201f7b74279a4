// SPDX-License-Identifier: BSD-3-Clause
// Fills buckets in the order in which gradients become ready.
#include "lockstep/parallel/bucket_plan.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::int64_t kAlignment = 64;  // a cache line, and a multiple of every element size

std::int64_t align(std::int64_t elements, std::int64_t element_size) {
  const std::int64_t step = kAlignment / element_size;
  return (elements + step - 1) / step * step;
}

// The bucket being filled for one type and device.
struct OpenBucket {
  c10::ScalarType dtype;
  c10::Device device;
  std::int64_t limit;
  PlannedBucket bucket;
  std::int64_t bytes = 0;
  std::size_t last_position = 0;

  std::int64_t element_size() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
};

struct ClosedBucket {
  PlannedBucket bucket;
  std::size_t last_position;
};

ClosedBucket close(OpenBucket& open, std::int64_t next_limit) {
  const auto count = static_cast<std::int64_t>(open.bucket.parameters.size());
  open.bucket.trailer = open.bucket.elements;
  open.bucket.elements = align(open.bucket.trailer + count + kUpdateCodes, open.element_size());
  ClosedBucket closed{std::move(open.bucket), open.last_position};
  open.bucket = {};
  open.bytes = 0;
  open.limit = next_limit;
  return closed;
}

}  // namespace

std::vector<PlannedBucket> plan_buckets(std::span<const GradientSize> gradients,
                                        std::span<const int> ready_order, BucketLimits limits) {
  std::vector<OpenBucket> open;
  std::vector<ClosedBucket> closed;
  for (std::size_t position = 0; position < ready_order.size(); ++position) {
    const int parameter = ready_order[position];
    const GradientSize& gradient = gradients[static_cast<std::size_t>(parameter)];
    auto current = std::find_if(open.begin(), open.end(), [&](const OpenBucket& candidate) {
      return candidate.dtype == gradient.dtype && candidate.device == gradient.device;
    });
    if (current == open.end()) {
      open.push_back({gradient.dtype, gradient.device, limits.first, {}});
      current = open.end() - 1;
    }
    current->bucket.parameters.push_back(parameter);
    current->bucket.offsets.push_back(current->bucket.elements);
    current->bucket.elements += align(gradient.elements, current->element_size());
    current->bytes += gradient.elements * current->element_size();
    current->last_position = position;
    if (current->bytes >= current->limit) closed.push_back(close(*current, limits.others));
  }
  for (OpenBucket& rest : open) {
    if (!rest.bucket.parameters.empty()) closed.push_back(close(rest, limits.others));
  }

  // A bucket is complete when its last gradient is ready.
  std::sort(closed.begin(), closed.end(), [](const ClosedBucket& a, const ClosedBucket& b) {
    return a.last_position < b.last_position;
  });
  std::vector<PlannedBucket> plan;
  plan.reserve(closed.size());
  for (ClosedBucket& bucket : closed) plan.push_back(std::move(bucket.bucket));
  return plan;
}

ElementRange share_of_rank(const PlannedBucket& bucket, std::int64_t element_size, int rank,
                           int size) {
  const std::int64_t share = align((bucket.elements + size - 1) / size, element_size);
  return {rank * share, share};
}

}  // namespace lockstep
