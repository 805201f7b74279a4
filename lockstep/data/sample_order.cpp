// SPDX-License-Identifier: BSD-3-Clause
// Draws with torch.randperm and torch.multinomial.
#include "lockstep/data/sample_order.h"

#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randperm.h>

namespace lockstep {
namespace {

// Python's manual_seed wraps a negative sum in the same way.
at::Generator generator(std::int64_t seed, std::int64_t epoch) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed) +
                                                  static_cast<std::uint64_t>(epoch));
}

std::vector<std::size_t> to_vector(const at::Tensor& indices) {
  const auto* values = indices.data_ptr<std::int64_t>();
  return {values, values + indices.numel()};
}

}  // namespace

std::vector<std::size_t> sample_order(std::size_t size, bool shuffle, std::int64_t seed,
                                      std::int64_t epoch) {
  if (shuffle) {
    return to_vector(at::randperm(static_cast<std::int64_t>(size), generator(seed, epoch),
                                  at::TensorOptions(at::kLong)));
  }
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

std::vector<std::size_t> weighted_order(const at::Tensor& weights, std::size_t num_samples,
                                        bool replacement, std::int64_t seed, std::int64_t epoch) {
  return to_vector(at::multinomial(weights, static_cast<std::int64_t>(num_samples), replacement,
                                   generator(seed, epoch)));
}

std::uint64_t order_hash(std::span<const std::byte> bytes) {
  std::uint64_t state = 14695981039346656037u;
  for (const std::byte byte : bytes) {
    state = (state ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  }
  return state;
}

}  // namespace lockstep
