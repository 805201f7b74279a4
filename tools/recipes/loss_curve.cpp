// SPDX-License-Identifier: BSD-3-Clause
// Adds up the losses of each section, and combines them over the ranks.
#include "tools/recipes/loss_curve.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "lockstep/train/over_ranks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostSections = 20;

}  // namespace

void LossCurve::add(std::int64_t step, const at::Tensor& loss, std::int64_t samples) {
  const std::int64_t sections = std::min(steps_per_epoch_, kMostSections);
  // The section whose first step is at steps * number / sections, rounded down, counted from 0.
  const std::int64_t number = (step * sections - 1) / steps_per_epoch_;
  if (sections_.empty() || sections_.back().number != number) {
    sections_.push_back({number, at::zeros({}, loss.options().dtype(at::kDouble)), 0});
  }
  sections_.back().losses.add_(loss.reshape({}), samples);
  sections_.back().samples += static_cast<double>(samples);
}

std::vector<LossPoint> LossCurve::finish(ProcessGroup& group) {
  const std::vector<Section> sections = std::exchange(sections_, {});
  std::vector<at::Tensor> losses;
  std::vector<double> samples;
  for (const Section& section : sections) {
    losses.push_back(section.losses);
    samples.push_back(section.samples);
  }
  const at::Tensor means = mean_over_ranks(at::stack(losses).cpu(), at::tensor(samples), group);
  std::vector<LossPoint> points;
  const std::int64_t count = std::min(steps_per_epoch_, kMostSections);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const std::int64_t last_step = steps_per_epoch_ * (sections[i].number + 1) / count;
    points.push_back({static_cast<double>(last_step) / static_cast<double>(steps_per_epoch_),
                      means[static_cast<std::int64_t>(i)].item<double>()});
  }
  return points;
}

}  // namespace lockstep
