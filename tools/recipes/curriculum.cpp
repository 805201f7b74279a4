// SPDX-License-Identifier: BSD-3-Clause
// Trains the probe, and makes the sampler.
#include "tools/recipes/curriculum.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/sample_order.h"

namespace lockstep {
namespace {

constexpr std::array<std::pair<const char*, Pacing>, 3> kPacings{
    {{"linear", Pacing::linear}, {"root", Pacing::root}, {"steps", Pacing::steps}}};

constexpr std::int64_t kProbeSamples = 20'000;
constexpr std::int64_t kProbeBatch = 100;
constexpr std::int64_t kProbeClasses = 10;
constexpr double kProbeRate = 0.01;

// Softmax regression by SGD from zero weights: the gradient of its loss is written out, so that the
// probe needs neither autograd nor random numbers.
at::Tensor losses_of_probe(const TrainingData& data, std::int64_t seed) {
  const torch::NoGradGuard no_grad;
  const std::int64_t samples = data.inputs.size(0);
  const at::Tensor images = data.inputs.flatten(1);
  const at::Tensor weight = torch::zeros({images.size(1), kProbeClasses});
  const at::Tensor bias = torch::zeros({kProbeClasses});
  const auto scores = [&](const at::Tensor& input) { return input.matmul(weight) + bias; };
  const auto order = sample_order(static_cast<std::size_t>(samples), true, seed, 0);
  const std::vector<std::int64_t> indices(order.begin(), order.end());
  const at::Tensor shuffled = torch::tensor(indices, torch::kLong);
  for (std::int64_t begin = 0; begin < std::min(samples, kProbeSamples); begin += kProbeBatch) {
    const at::Tensor batch =
        shuffled.slice(0, begin, std::min({samples, kProbeSamples, begin + kProbeBatch}));
    const at::Tensor input = images.index_select(0, batch);
    const at::Tensor target = data.targets.index_select(0, batch).unsqueeze(1);
    at::Tensor error = scores(input).softmax(1);
    error.scatter_add_(1, target, torch::full({batch.size(0), 1}, -1.0));
    error /= static_cast<double>(batch.size(0));
    weight.sub_(input.t().matmul(error), kProbeRate);
    bias.sub_(error.sum(0), kProbeRate);
  }
  return -scores(images).log_softmax(1).gather(1, data.targets.unsqueeze(1)).squeeze(1);
}

}  // namespace

Pacing find_pacing(const std::string& name) {
  for (const auto& [known, pacing] : kPacings) {
    if (name == known) return pacing;
  }
  throw UsageError(
      fmt::format("there is no pacing \"{}\"; choose one of linear, root, steps", name));
}

at::Tensor probe_losses(const TrainingData& data, std::int64_t seed, ProcessGroup& group) {
  at::Tensor losses = group.rank() == 0 ? losses_of_probe(data, seed).contiguous()
                                        : torch::empty({data.inputs.size(0)});
  losses = losses.to(group.device());
  group.broadcast(losses, 0).wait();
  return losses.cpu();
}

std::unique_ptr<EpochSampler> make_sampler(const TrainingData& data,
                                           const std::optional<Curriculum>& curriculum,
                                           std::int64_t seed, std::int64_t global_batch_size,
                                           std::int64_t epochs, ProcessGroup& group) {
  const auto size = static_cast<std::size_t>(data.size());
  if (!curriculum) {
    return std::make_unique<DistributedSampler>(size, group,
                                                DistributedSamplerOptions{.seed = seed});
  }
  const std::int64_t steps_per_epoch = (data.size() + global_batch_size - 1) / global_batch_size;
  const std::int64_t half = std::max<std::int64_t>(1, steps_per_epoch * epochs / 2);
  return std::make_unique<CurriculumSampler>(
      size, probe_losses(data, seed, group), group,
      CurriculumSamplerOptions{.global_batch_size = global_batch_size,
                               .full_at_step = curriculum->full_at_step.value_or(half),
                               .pacing = curriculum->pacing,
                               .start_share = curriculum->start_share,
                               .seed = seed});
}

}  // namespace lockstep
