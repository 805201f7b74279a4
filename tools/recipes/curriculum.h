// SPDX-License-Identifier: BSD-3-Clause
// The order in which a recipe visits its samples: shuffled, or from easy to hard by the loss of a
// small probe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/number.h"
#include "lockstep/data/curriculum_sampler.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

constexpr Range<double> kStartShares{1e-6, 1};
constexpr Range<std::int64_t> kCurriculumSteps{1, 1'000'000'000'000'000};

struct Curriculum {
  Pacing pacing = Pacing::linear;
  // The share of the samples that the first step draws from.
  double start_share = 0.2;
  // The first step that draws from all samples (default: the first of the second half).
  std::optional<std::int64_t> full_at_step = {};
};

// Reads "linear", "root" or "steps". UsageError, listing them, for other names.
Pacing find_pacing(const std::string& name);

// Collective. Returns the loss of each sample, float [N] on the CPU, under a linear classifier that
// rank 0 trains for one pass over at most 20,000 images. The result is the same on every rank, and
// depends only on the data and the seed.
at::Tensor probe_losses(const TrainingData& data, std::int64_t seed, ProcessGroup& group);

// Collective with a curriculum. `epochs` is the length of the run.
std::unique_ptr<EpochSampler> make_sampler(const TrainingData& data,
                                           const std::optional<Curriculum>& curriculum,
                                           std::int64_t seed, std::int64_t global_batch_size,
                                           std::int64_t epochs, ProcessGroup& group);

}  // namespace lockstep
