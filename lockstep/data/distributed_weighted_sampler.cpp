// SPDX-License-Identifier: BSD-3-Clause
// Checks the weights, and draws with them.
#include "lockstep/data/distributed_weighted_sampler.h"

#include <cmath>
#include <span>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/data/sample_order.h"

namespace lockstep {
namespace {

// torch.multinomial's limit.
constexpr std::int64_t kMostWeights = 1 << 24;

void require_shape(const at::Tensor& weights, const ErrorContext& sampler) {
  if (!weights.defined()) {
    throw UsageError(sampler, "weights are undefined", "give a tensor with one for each sample");
  }
  if (weights.layout() != at::kStrided || weights.is_quantized() || weights.is_meta()) {
    throw UsageError(sampler, "weights are sparse, quantized or on the device meta",
                     "give an ordinary tensor, as to_dense() and dequantize() make it");
  }
  const std::int64_t count = weights.numel();
  if (weights.dim() == 1 && !weights.is_complex() && count > 0 && count <= kMostWeights) return;
  throw UsageError(
      sampler,
      fmt::format("weights of shape [{}] and type {}", fmt::join(weights.sizes(), ", "),
                  at::toString(weights.scalar_type())),
      fmt::format("give one real number for each sample, at most {}, in a tensor of one dimension",
                  kMostWeights));
}

void require_values(std::span<const double> weights, std::int64_t num_samples, bool replacement,
                    const ErrorContext& sampler) {
  std::int64_t positive = 0;
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw UsageError(sampler, fmt::format("weight {} of {} is {}", i, weights.size(), weights[i]),
                       "weights must be finite and not negative");
    }
    positive += weights[i] > 0 ? 1 : 0;
    sum += weights[i];
  }
  if (positive == 0) {
    throw UsageError(sampler, fmt::format("all {} weights are 0", weights.size()),
                     "give one that is positive");
  }
  if (!std::isfinite(sum)) {
    throw UsageError(sampler, "the weights' sum is infinite", "scale them down");
  }
  if (num_samples < 1) {
    throw UsageError(sampler, fmt::format("num_samples is {}", num_samples), "give at least 1");
  }
  if (!replacement && num_samples > positive) {
    throw UsageError(
        sampler,
        fmt::format("{} samples were asked for without replacement, but {} weights are positive",
                    num_samples, positive),
        "ask for no more than these, or set .replacement = true");
  }
}

// Returns a checked copy, which later changes to the caller's tensor do not reach.
at::Tensor checked(const at::Tensor& weights, std::int64_t num_samples, bool replacement,
                   const ErrorContext& sampler) {
  require_shape(weights, sampler);
  const at::Tensor copy =
      weights.detach().cpu().to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  const auto count = static_cast<std::size_t>(copy.numel());
  require_values({copy.data_ptr<double>(), count}, num_samples, replacement, sampler);
  return copy;
}

}  // namespace

DistributedWeightedSampler::DistributedWeightedSampler(
    const at::Tensor& weights, std::int64_t num_samples, GroupArgument group,
    const DistributedWeightedSamplerOptions& options)
    : DistributedWeightedSampler(weights, num_samples, group.get().size(), group.get().rank(),
                                 options) {}

DistributedWeightedSampler::DistributedWeightedSampler(
    const at::Tensor& weights, std::int64_t num_samples, int num_replicas, int rank,
    const DistributedWeightedSamplerOptions& options)
    : EpochSampler("DistributedWeightedSampler",
                   {static_cast<std::size_t>(num_samples), num_replicas, rank, options.drop_last},
                   options.seed),
      weights_(checked(weights, num_samples, options.replacement, context())),
      replacement_(options.replacement),
      seed_(options.seed) {}

std::string DistributedWeightedSampler::description() const {
  const std::span weights(weights_.data_ptr<double>(), static_cast<std::size_t>(weights_.numel()));
  return fmt::format("{}, {} replacement, {} weights with the hash {:x}",
                     EpochSampler::description(), replacement_ ? "with" : "without", weights.size(),
                     order_hash(std::as_bytes(weights)));
}

void DistributedWeightedSampler::reset(c10::optional<std::size_t> new_size) {
  const auto count = static_cast<std::size_t>(weights_.numel());
  if (new_size && *new_size != count) {
    throw UsageError(context(),
                     fmt::format("a data set of {} samples, but {} weights", *new_size, count),
                     "make a sampler with a weight for each sample");
  }
  EpochSampler::reset();
}

std::vector<std::size_t> DistributedWeightedSampler::order(std::size_t size,
                                                           std::int64_t epoch) const {
  return weighted_order(weights_, size, replacement_, seed_, epoch);
}

}  // namespace lockstep
