// SPDX-License-Identifier: BSD-3-Clause
// Sums a rank's batches on the metric's device, and the ranks' sums in one exchange at the end.
#include "lockstep/train/evaluate.h"

#include <algorithm>
#include <string>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/elastic_job.h"

namespace lockstep::detail {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

// The numbers of samples and of the metric's sums on one rank.
struct Share {
  std::int64_t loaded;
  std::int64_t expected;
  std::int64_t counted;
  std::int64_t sums;  // 0 if the rank has only padding
  int sampler_rank;
  int sampler_ranks;
  // The sampler's number of samples over all ranks, and its seed; 0 if it does not shuffle.
  std::int64_t samples;
  std::int64_t seed;
};

// Every rank throws if one rank made a mistake.
std::int64_t agreed_number_of_sums(const std::vector<Share>& shares, const ProcessGroup& group) {
  std::int64_t sums = 0;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const Share& share = shares[rank];
    if (share.sampler_ranks != group.size() || share.sampler_rank != static_cast<int>(rank)) {
      throw UsageError(group.context("evaluate"),
                       fmt::format("the sampler of rank {} deals the samples of rank {} of {}",
                                   rank, share.sampler_rank, share.sampler_ranks),
                       "make it for this group: DistributedSampler(data, group)");
    }
    if (share.samples != shares.front().samples || share.seed != shares.front().seed) {
      throw UsageError(
          group.context("evaluate"),
          fmt::format("the sampler of rank 0 has {} samples and the seed {}, the "
                      "sampler of rank {} has {} and {}",
                      shares.front().samples, shares.front().seed, rank, share.samples, share.seed),
          "make it with the same data set and options on every rank");
    }
    if (share.loaded != share.expected) {
      throw UsageError(group.context("evaluate"),
                       fmt::format("the loader of rank {} yields {} samples, the sampler {}", rank,
                                   share.loaded, share.expected),
                       "pass the sampler that the loader was made with, and leave the loader's "
                       "drop_last off");
    }
    if (sums != 0 && share.sums != 0 && share.sums != sums) {
      throw UsageError(group.context("evaluate"),
                       fmt::format("the metric returned {} sums on rank {} and {} on a lower one",
                                   share.sums, rank, sums),
                       "return the same number on all ranks");
    }
    sums = std::max(sums, share.sums);
  }
  if (sums != 0) return sums;
  throw UsageError(group.context("evaluate"),
                   "there is nothing to evaluate: the data set is empty, or the metric returned a "
                   "tensor without elements");
}

}  // namespace

EvaluationMode::EvaluationMode(torch::nn::Module* module) {
  if (module == nullptr) return;
  submodules_ = module->modules(/*include_self=*/false);
  modes_.push_back({module, module->is_training()});
  for (const auto& submodule : submodules_) {
    modes_.push_back({submodule.get(), submodule->is_training()});
  }
  module->eval();
}

// train() changes submodules too, so each module comes before its submodules.
EvaluationMode::~EvaluationMode() {
  for (const Mode& mode : modes_) mode.module->train(mode.training);
}

std::optional<at::Device> device_of(const torch::nn::Module* module) {
  if (module == nullptr) return std::nullopt;
  for (const auto& tensors : {module->parameters(), module->buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) return tensor.device();
    }
  }
  return std::nullopt;
}

EvaluatedBatches::EvaluatedBatches(const DistributedSampler& sampler, ProcessGroup& group,
                                   std::optional<at::Device> device)
    : group_(group),
      sampler_(sampler),
      padding_starts_(static_cast<std::int64_t>(sampler.unpadded_size())),
      device_(device) {}

bool EvaluatedBatches::take(c10::ArrayRef<at::Tensor*> tensors) {
  std::int64_t samples = -1;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->dim() > 0 && samples < 0) samples = tensor->size(0);
    if (tensor->dim() == 0 || tensor->size(0) != samples) {
      throw UsageError(group_.context("evaluate"),
                       fmt::format("a batch has a tensor of shape {} and {} samples",
                                   shape_of(*tensor), std::max<std::int64_t>(samples, 0)),
                       "the samples must be in dimension 0 of each tensor");
    }
  }
  if (samples < 0) throw UsageError(group_.context("evaluate"), "a batch holds no tensor");
  const std::int64_t counted = std::clamp<std::int64_t>(padding_starts_ - loaded_, 0, samples);
  loaded_ += samples;
  for (at::Tensor* tensor : tensors) {
    *tensor = tensor->narrow(0, 0, counted);
    if (device_) *tensor = tensor->to(*device_);
  }
  return counted > 0;
}

void EvaluatedBatches::add(const at::Tensor& sums) {
  const at::Tensor flat = sums.to(at::kDouble).flatten();
  if (!sums_.defined()) {
    sums_ = flat.clone();
  } else if (flat.numel() == sums_.numel()) {
    sums_ += flat;
  } else {
    throw UsageError(group_.context("evaluate"),
                     fmt::format("the metric returned {} sums for one batch and {} for another",
                                 sums_.numel(), flat.numel()),
                     "return the same number each time");
  }
}

Evaluation EvaluatedBatches::over_ranks() const {
  const DataCursor data = sampler_.cursor_after(0);
  const auto job = ElasticJob::of_this_process();
  if (job) job->note_waiting();
  const auto shares =
      all_gather_object(Share{.loaded = loaded_,
                              .expected = static_cast<std::int64_t>(sampler_.size()),
                              .counted = std::min(loaded_, padding_starts_),
                              .sums = sums_.defined() ? sums_.numel() : 0,
                              .sampler_rank = sampler_.rank(),
                              .sampler_ranks = sampler_.num_replicas(),
                              .samples = data.samples,
                              .seed = data.seed},
                        group_);
  const std::int64_t count = agreed_number_of_sums(shares, group_);
  const at::Tensor sums =
      sums_.defined() ? sums_.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true)
                      : at::zeros({count}, at::kDouble);
  group_.all_reduce(sums).wait();
  if (job) job->note_going_on();
  Evaluation result;
  result.sums.assign(sums.data_ptr<double>(), sums.data_ptr<double>() + count);
  for (const Share& share : shares) result.samples += share.counted;
  return result;
}

void require_order(bool ordered, const ProcessGroup& group) {
  if (ordered) return;
  throw UsageError(group.context("evaluate"),
                   "the loader's enforce_ordering is off: padding could come before other samples "
                   "and be counted",
                   "leave it on");
}

at::Tensor count_right(const at::Tensor& output, const at::Tensor& target,
                       const ProcessGroup& group) {
  if (output.dim() != 2 || target.dim() != 1 || output.size(0) != target.size(0)) {
    throw UsageError(group.context("evaluate"),
                     fmt::format("accuracy() takes outputs {{samples, classes}} and targets "
                                 "{{samples}}, not {} and {}",
                                 shape_of(output), shape_of(target)),
                     "give evaluate() a metric for others");
  }
  return output.argmax(1).eq(target.to(output.device())).sum();
}

}  // namespace lockstep::detail
