// SPDX-License-Identifier: BSD-3-Clause
// Finds the metric that decides, and refuses to maximize a loss by default.
#include "lockstep/train/watched_metric.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

// Whether the name says that lower is better: "val_loss", "Top-1 error".
bool is_name_of_loss(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 3> kLosses{"loss", "error", "perplexity"};
  return std::ranges::any_of(
      kLosses, [&](std::string_view loss) { return name.find(loss) != std::string::npos; });
}

// Returns the option that makes a metric the one that decides.
std::string option_for(const std::string& name) {
  return fmt::format(".watch = {{.name = \"{}\"{}}}", name,
                     is_name_of_loss(name) ? ", .lower_is_better = true" : "");
}

[[noreturn]] void refuse_lack(const std::vector<std::string>& names, const std::string& wanted,
                              const ErrorContext& trainer) {
  if (names.empty()) {
    throw UsageError(trainer, "evaluate() returned nothing, and one metric decides",
                     "return a number, or metrics by their names");
  }
  const auto no_loss = std::ranges::find_if_not(names, is_name_of_loss);
  throw UsageError(
      trainer,
      fmt::format("evaluate() returned {}, and {}", fmt::join(names, ", "),
                  wanted.empty() ? "one metric decides" : "no " + wanted),
      "name the metric that decides: " + option_for(no_loss == names.end() ? names[0] : *no_loss));
}

}  // namespace

const char* option_of_evaluation(const TrainerOptions& options) {
  if (options.patience > 0) return ".patience";
  if (options.restore_best) return ".restore_best";
  if (options.reduce_lr_on_plateau) return ".reduce_lr_on_plateau";
  return nullptr;
}

bool evaluations_decide(const TrainerOptions& options) {
  return option_of_evaluation(options) != nullptr || options.checkpoints;
}

std::string watch_text(const WatchedMetric& watch, const std::string& name) {
  return fmt::format("the {} {}", watch.lower_is_better ? "lowest" : "highest",
                     watch.name.empty() ? name : watch.name);
}

Metrics::const_iterator watched_metric(const Metrics& metrics, const TrainerOptions& options,
                                       const ErrorContext& trainer) {
  const WatchedMetric& watch = options.watch;
  const bool by_default = watch.name.empty();
  const auto found = by_default && metrics.size() == 1 ? metrics.begin() : metrics.find(watch.name);
  if (found == metrics.end()) {
    if (by_default && !evaluations_decide(options)) return found;
    std::vector<std::string> names;
    for (const auto& [known, value] : metrics) names.push_back(known);
    refuse_lack(names, watch.name, trainer);
  }
  if (by_default && !watch.lower_is_better && evaluations_decide(options) &&
      is_name_of_loss(found->first)) {
    throw UsageError(
        trainer,
        fmt::format("evaluate() returned {}, of which the highest would be the best", found->first),
        "say which is better: " + option_for(found->first));
  }
  return found;
}

}  // namespace lockstep
