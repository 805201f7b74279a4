// SPDX-License-Identifier: BSD-3-Clause
// Sorts the samples by score, and draws each step from those that the pacing function allows.
#include "lockstep/data/curriculum_sampler.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/serialize/archive.h>

#include "lockstep/core/error.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/data/sample_order.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

void check_curriculum(const CurriculumSamplerOptions& options, const ErrorContext& sampler) {
  if (options.global_batch_size < 1) {
    throw UsageError(sampler, fmt::format("global_batch_size is {}", options.global_batch_size),
                     "give the samples of one step on all ranks together, at least 1");
  }
  if (options.full_at_step < 1) {
    throw UsageError(sampler, fmt::format("full_at_step is {}", options.full_at_step),
                     "give the number of steps until all samples are in, at least 1");
  }
  if (!(options.start_share > 0 && options.start_share <= 1)) {
    throw UsageError(sampler, fmt::format("start_share is {}", options.start_share),
                     "give a share above 0 and at most 1");
  }
  if (options.pacing == Pacing::steps && options.stages < 1) {
    throw UsageError(sampler, fmt::format("stages is {}", options.stages), "give at least 1");
  }
}

void require_scores(const at::Tensor& scores, std::size_t samples, const ErrorContext& sampler) {
  if (!scores.defined()) {
    throw UsageError(sampler, "scores are undefined", "give a tensor with one for each sample");
  }
  if (scores.layout() != at::kStrided || scores.is_quantized() || scores.is_meta() ||
      scores.is_complex() || scores.dim() != 1) {
    throw UsageError(
        sampler,
        fmt::format("scores of shape [{}] and type {}", fmt::join(scores.sizes(), ", "),
                    at::toString(scores.scalar_type())),
        "give one real number for each sample, in an ordinary tensor of one dimension");
  }
  if (samples == 0) throw UsageError(sampler, "the data set has no samples", "give one that has");
  if (static_cast<std::size_t>(scores.numel()) != samples) {
    throw UsageError(sampler, fmt::format("{} scores for {} samples", scores.numel(), samples),
                     "give one for each");
  }
}

std::vector<std::size_t> sorted_by_score(const at::Tensor& scores, std::size_t samples,
                                         const ErrorContext& sampler) {
  require_scores(scores, samples, sampler);
  const at::Tensor values = on_host(scores.detach().to(at::kDouble));
  const auto* score = values.data_ptr<double>();
  const auto* nan = std::find_if(score, score + samples, [](double s) { return std::isnan(s); });
  if (nan != score + samples) {
    throw UsageError(sampler, fmt::format("score {} of {} is nan", nan - score, samples),
                     "give each sample a number, such as infinity for the hardest");
  }
  std::vector<std::size_t> sorted(samples);
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  std::ranges::stable_sort(sorted, {}, [&](std::size_t sample) { return score[sample]; });
  return sorted;
}

double share_at(const CurriculumSamplerOptions& options, std::int64_t step) {
  if (step >= options.full_at_step) return 1;
  const double start = options.start_share;
  const double t = static_cast<double>(step) / static_cast<double>(options.full_at_step);
  switch (options.pacing) {
    case Pacing::linear:
      return start + (1 - start) * t;
    case Pacing::root:
      return std::sqrt(start * start + (1 - start * start) * t);
    case Pacing::steps:
      return std::pow(start, 1 - std::floor(options.stages * t) / options.stages);
  }
  return 1;
}

}  // namespace

struct CurriculumSampler::Resumption {
  std::mutex mutex;
  // Where to resume; empty once a reset has taken it.
  std::optional<CurriculumState> at;

  std::optional<CurriculumState> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(at, std::nullopt);
  }
};

CurriculumSampler::CurriculumSampler(DatasetSize dataset, const at::Tensor& scores,
                                     GroupArgument group, const CurriculumSamplerOptions& options)
    : CurriculumSampler(dataset, scores, group.get().size(), group.get().rank(), options) {}

CurriculumSampler::CurriculumSampler(DatasetSize dataset, const at::Tensor& scores,
                                     int num_replicas, int rank,
                                     const CurriculumSamplerOptions& options)
    : EpochSampler("CurriculumSampler", {dataset.get(), num_replicas, rank, options.drop_last},
                   options.seed),
      by_score_(std::make_shared<const std::vector<std::size_t>>(
          sorted_by_score(scores, dataset.get(), context()))),
      options_(options),
      resumption_(std::make_shared<Resumption>()) {
  check_curriculum(options, context());
}

std::string CurriculumSampler::description() const {
  return fmt::format(
      "{}, global_batch_size {}, full_at_step {}, pacing {}, start_share {}, stages {}, scores "
      "whose order has the hash {:x}",
      EpochSampler::description(), options_.global_batch_size, options_.full_at_step,
      static_cast<int>(options_.pacing), options_.start_share, options_.stages,
      order_hash(std::as_bytes(std::span(*by_score_))));
}

std::size_t CurriculumSampler::pool_size(std::int64_t step) const {
  const std::size_t samples = by_score_->size();
  const double share = share_at(options_, std::max<std::int64_t>(step, 0));
  // The last bits of a share differ between machines, and must not add a sample on some of them.
  constexpr double kRoundingMargin = 1 - 1e-12;
  const auto paced =
      static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples) * kRoundingMargin));
  const auto batch = static_cast<std::size_t>(options_.global_batch_size);
  return std::min(samples, std::max(paced, batch));
}

std::size_t CurriculumSampler::own_batch_size() const {
  if (options_.global_batch_size % num_replicas() != 0) {
    throw UsageError(
        context(), fmt::format("global_batch_size is {}", options_.global_batch_size),
        fmt::format("give the samples of one step on all ranks together, a multiple of {}",
                    num_replicas()));
  }
  return static_cast<std::size_t>(options_.global_batch_size / num_replicas());
}

std::int64_t CurriculumSampler::steps_per_epoch() const {
  const auto samples = static_cast<std::int64_t>(by_score_->size());
  return samples / options_.global_batch_size + (samples % options_.global_batch_size != 0 ? 1 : 0);
}

std::vector<std::size_t> CurriculumSampler::order(std::size_t size, std::int64_t epoch) const {
  const std::int64_t first_step = epoch * steps_per_epoch();
  if (pool_size(first_step) == size) return sample_order(size, true, options_.seed, epoch);

  std::mt19937_64 random(static_cast<std::uint64_t>(options_.seed) +
                         static_cast<std::uint64_t>(epoch));
  // The pool is always the front of this, in an arbitrary order: the swaps of a step stay within
  // its pool.
  std::vector<std::size_t> samples = *by_score_;
  std::vector<std::size_t> drawn;
  drawn.reserve(size);
  const auto batch = static_cast<std::size_t>(options_.global_batch_size);
  // The number of samples that were drawn from the pool: by this step while the pool grows, by all
  // steps since it is complete.
  std::size_t taken = 0;
  for (std::int64_t step = first_step; drawn.size() < size; ++step) {
    const std::size_t pool = pool_size(step);
    if (step == first_step || pool_size(step - 1) < size) taken = 0;
    const std::size_t end = std::min(size, drawn.size() + batch);
    for (; drawn.size() < end; ++taken) {
      // The modulus prefers small numbers by less than one part in 2^32.
      std::swap(samples[taken], samples[taken + random() % (pool - taken)]);
      drawn.push_back(samples[taken]);
    }
  }
  return drawn;
}

CurriculumState CurriculumSampler::state_after(std::int64_t steps) const {
  if (steps < 0 || steps > steps_per_epoch()) {
    throw UsageError(
        context(), fmt::format("the state after {} steps was asked for, but an epoch has {}", steps,
                               steps_per_epoch()));
  }
  const auto samples = static_cast<std::int64_t>(by_score_->size());
  return {.seed = options_.seed,
          .epoch = epoch(),
          .samples_consumed = std::min(samples, steps * options_.global_batch_size),
          .global_batch_size = options_.global_batch_size,
          .samples = samples};
}

void CurriculumSampler::resume(const CurriculumState& state) {
  const auto samples = static_cast<std::int64_t>(by_score_->size());
  const auto require_same = [&](const char* what, std::int64_t of_state, std::int64_t own) {
    if (of_state == own) return;
    throw UsageError(
        context(),
        fmt::format("the state's {} is {}, but the sampler's is {}", what, of_state, own),
        fmt::format("make the sampler with the state's {}", what));
  };
  require_same("seed", state.seed, options_.seed);
  require_same("global_batch_size", state.global_batch_size, options_.global_batch_size);
  require_same("number of samples", state.samples, samples);
  const bool whole_steps =
      state.samples_consumed % options_.global_batch_size == 0 || state.samples_consumed == samples;
  if (state.samples_consumed < 0 || state.samples_consumed > samples || !whole_steps) {
    throw UsageError(
        context(),
        fmt::format("the state has consumed {} samples, which are not whole steps of {} out of {}",
                    state.samples_consumed, options_.global_batch_size, samples),
        "give a state that state_after() or save() made");
  }
  if (deals_microbatches()) {
    DataCursor cursor = cursor_after(state.samples_consumed);
    cursor.epoch = state.epoch;
    return EpochSampler::resume(cursor);
  }
  set_epoch(state.epoch);
  const std::lock_guard lock(resumption_->mutex);
  resumption_->at = state;
}

void CurriculumSampler::resume(const DataCursor& cursor) {
  check(cursor);
  resume({.seed = cursor.seed,
          .epoch = cursor.epoch,
          .samples_consumed = cursor.samples_consumed,
          .global_batch_size = options_.global_batch_size,
          .samples = cursor.samples});
}

void CurriculumSampler::reset(c10::optional<std::size_t> new_size) {
  if (new_size && *new_size != by_score_->size()) {
    throw UsageError(
        context(),
        fmt::format("a data set of {} samples, but {} scores", *new_size, by_score_->size()),
        "make a sampler with a score for each sample");
  }
  if (deals_microbatches()) return EpochSampler::reset();
  const std::size_t own_batch = own_batch_size();
  const std::int64_t wanted = epoch();
  const std::optional<CurriculumState> resumed = resumption_->take();
  EpochSampler::reset();
  loaded_ = false;
  running_epoch_ = wanted;
  steps_given_ = 0;
  if (!resumed || resumed->epoch != wanted || resumed->samples_consumed == 0) return;
  const std::int64_t batch = options_.global_batch_size;
  steps_given_ = (resumed->samples_consumed + batch - 1) / batch;
  EpochSampler::next(static_cast<std::size_t>(steps_given_) * own_batch);
}

c10::optional<std::vector<std::size_t>> CurriculumSampler::next(std::size_t batch_size) {
  if (deals_microbatches()) return EpochSampler::next(batch_size);
  const std::size_t own = own_batch_size();
  if (batch_size != own) {
    throw UsageError(context(),
                     fmt::format("a batch of {} samples was asked for, but this rank's part of the "
                                 "global batch of {} is {}",
                                 batch_size, options_.global_batch_size, own),
                     "give the loader this batch size");
  }
  // This copy is used itself: a later reset() of it starts an epoch from the beginning.
  if (std::exchange(loaded_, false)) resumption_->take();
  auto batch = EpochSampler::next(batch_size);
  if (batch) ++steps_given_;
  return batch;
}

void CurriculumSampler::deal_microbatches(const std::optional<MicrobatchPlan>& plan) {
  if (plan && plan->global_batch_size() != options_.global_batch_size) {
    throw UsageError(context(),
                     fmt::format("{} microbatches of {} samples are not a global_batch_size of {}",
                                 plan->microbatches, plan->size, options_.global_batch_size),
                     "make the sampler with the product, or the loader with another batch size");
  }
  EpochSampler::deal_microbatches(plan);
  if (!plan) return;
  // From now on, a position counts samples and not steps of this rank.
  const std::optional<CurriculumState> resumed = resumption_->take();
  if (resumed && resumed->epoch == epoch()) resume(*resumed);
}

void CurriculumSampler::save(torch::serialize::OutputArchive& archive) const {
  refuse_while_dealing_microbatches("save()");
  CurriculumState state = state_after(steps_given_);
  state.epoch = running_epoch_.value_or(state.epoch);
  {
    const std::lock_guard lock(resumption_->mutex);
    if (resumption_->at && resumption_->at->epoch == epoch()) state = *resumption_->at;
  }
  archive.write("seed", c10::IValue(state.seed));
  archive.write("epoch", c10::IValue(state.epoch));
  archive.write("samples_consumed", c10::IValue(state.samples_consumed));
  archive.write("global_batch_size", c10::IValue(state.global_batch_size));
  archive.write("samples", c10::IValue(state.samples));
}

void CurriculumSampler::load(torch::serialize::InputArchive& archive) {
  refuse_while_dealing_microbatches("load()");
  const auto read = [&](const char* key) {
    c10::IValue value;
    archive.read(key, value);
    return value.toInt();
  };
  const CurriculumState state{.seed = read("seed"),
                              .epoch = read("epoch"),
                              .samples_consumed = read("samples_consumed"),
                              .global_batch_size = read("global_batch_size"),
                              .samples = read("samples")};
  resume(state);
  reset();
  // The reset has taken the state; a loader's begin() resets its own copy and needs it again.
  resume(state);
  loaded_ = true;
}

}  // namespace lockstep
