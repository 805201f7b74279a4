// SPDX-License-Identifier: BSD-3-Clause
// Evaluates each rank's share in batches, and sums the counts over all ranks.
#include "lockstep/train/evaluate.h"

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/memory_loader.h"

namespace lockstep {
namespace {

constexpr std::size_t kEvaluationBatch = 500;

}  // namespace

double measure_accuracy(torch::nn::Sequential& net, const at::Tensor& inputs,
                        const at::Tensor& labels, GroupArgument argument) {
  ProcessGroup& group = argument.get();
  const torch::NoGradGuard no_grad;
  const bool was_training = net->is_training();
  net->eval();
  const DistributedSampler sampler(static_cast<std::size_t>(inputs.size(0)), group,
                                   {.shuffle = false});
  MemoryLoader loader(inputs, labels, sampler,
                      {.batch_size = kEvaluationBatch, .device = group.device()});
  auto own = static_cast<std::int64_t>(sampler.unpadded_size());
  at::Tensor counts = torch::zeros({2}, torch::TensorOptions(torch::kLong).device(group.device()));
  for (auto& batch : loader) {
    // The other samples are padding, which another rank counts.
    const std::int64_t count = std::min(own, batch.target.size(0));
    own -= count;
    const auto right = net->forward(batch.data).argmax(1).eq(batch.target).narrow(0, 0, count);
    counts[0] += right.sum();
    counts[1] += count;
  }
  net->train(was_training);
  group.all_reduce(counts).wait();
  counts = counts.cpu();
  return static_cast<double>(counts[0].item<std::int64_t>()) /
         static_cast<double>(counts[1].item<std::int64_t>());
}

}  // namespace lockstep
