// SPDX-License-Identifier: BSD-3-Clause
// Describes a training in lines that the ranks compare.
#include "lockstep/train/same_training.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <vector>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/checkpoint/optimizer/optimizer_fields.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {
namespace {

using Lines = std::vector<std::string>;

constexpr const char* kModes[] = {"automatic", "single", "data_parallel", "distributed"};
constexpr const char* kBuffers[] = {"of_rank_0", "mean", "own"};

template <class Enumeration, std::size_t n>
const char* word(const char* const (&words)[n], Enumeration value) {
  return words[static_cast<std::size_t>(value)];
}

template <class Value>
std::string optional_text(const std::optional<Value>& value) {
  return value ? fmt::format("{}", *value) : "none";
}

void add_plateau(Lines& lines, const std::optional<optim::ReduceLROnPlateauOptions>& plateau) {
  lines.push_back(fmt::format("reduce_lr_on_plateau {}", plateau ? "yes" : "none"));
  if (!plateau) return;
  lines.push_back(
      fmt::format("reduce_lr_on_plateau with factor {}, patience {}, threshold {} ({}), cooldown "
                  "{}, min_lr {}, "
                  "eps {}",
                  plateau->factor, plateau->patience, plateau->threshold,
                  plateau->threshold_mode == optim::ThresholdMode::rel ? "relative" : "absolute",
                  plateau->cooldown, fmt::join(plateau->min_lr, " "), plateau->eps));
}

void add_schedule(Lines& lines, const std::optional<optim::LRSchedule>& schedule) {
  lines.push_back(fmt::format("lr_schedule {}", schedule ? "yes" : "none"));
  if (!schedule) return;
  for (const auto& [name, number] : schedule->numbers()) {
    lines.push_back(fmt::format("lr_schedule with {} {}", name, number));
  }
}

void add_options(Lines& lines, const TrainerOptions& options) {
  const auto add = [&](std::string_view name, const auto& value) {
    lines.push_back(fmt::format("{} {}", name, value));
  };
  add("mode", word(kModes, options.mode));
  add("epochs", options.epochs);
  add("accumulation_steps", options.accumulation_steps);
  add("microbatches", options.microbatches);
  add("balance_load", options.balance_load);
  add("loss_reduction", options.loss_reduction == LossReduction::mean ? "mean" : "sum");
  add("max_grad_norm", optional_text(options.max_grad_norm));
  add("amp", options.amp ? c10::toString(*options.amp) : "none");
  add("watch", fmt::format("'{}', {} is better", options.watch.name,
                           options.watch.lower_is_better ? "lower" : "higher"));
  add("patience", options.patience);
  add("ema_decay", optional_text(options.ema_decay));
  add("evaluate_ema", options.evaluate_ema);
  add("restore_best", options.restore_best);
  add("check_finite", options.check_finite);
  add("check_in_sync", options.check_in_sync);
  add("shard_optimizer", options.shard_optimizer);
  add("sync_batchnorm", options.sync_batchnorm);
  add("evaluation_buffers", word(kBuffers, options.evaluation_buffers));
  add("lr_scale", options.lr_scale);
  add_plateau(lines, options.reduce_lr_on_plateau);
  add("checkpoints", options.checkpoints ? "yes" : "none");
  if (!options.checkpoints) return;
  add("checkpoints.every_steps", options.checkpoints->every_steps);
  add("checkpoints.resume", options.checkpoints->resume);
  for (const NamedTensor& named : options.checkpoints->tensors) {
    add("checkpoints.tensors with", named.name);
  }
}

// A visitor of OptimizerFields.
class FieldLines {
 public:
  FieldLines(Lines& lines, std::size_t group) : lines_(lines), group_(group) {}

  void number(std::string_view name, double value, const NumberBounds&) { add(name, value); }
  void flag(std::string_view name, bool value) { add(name, value); }
  void pair(std::string_view name, const std::tuple<double, double>& value, const NumberBounds&) {
    add(name, fmt::format("({}, {})", std::get<0>(value), std::get<1>(value)));
  }
  void fixed(std::string_view, bool, bool, std::string_view) {}
  void fault(std::string_view) {}

 private:
  template <class Value>
  void add(std::string_view name, const Value& value) {
    lines_.push_back(
        fmt::format("{} {} in the optimizer's parameter group {}", name, value, group_));
  }

  Lines& lines_;
  std::size_t group_;
};

bool is_known(const torch::optim::Optimizer& optimizer) {
  try {
    with_fields_of(optimizer, [](auto) {});
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// Only the learning rates are readable if the optimizer has an unknown type.
void add_optimizer(Lines& lines, const torch::optim::Optimizer& optimizer) {
  lines.push_back(fmt::format("an optimizer {}", c10::demangle(typeid(optimizer).name())));
  const auto& groups = optimizer.param_groups();
  const bool known = is_known(optimizer);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    lines.push_back(fmt::format("{} parameters in the optimizer's parameter group {}",
                                groups[i].params().size(), i));
    if (known) {
      with_fields_of(optimizer, [&]<class Fields>(Fields) {
        auto options = static_cast<const typename Fields::Options&>(groups[i].options());
        FieldLines visitor(lines, i);
        Fields::visit(options, visitor);
      });
    } else {
      const double rate = groups[i].options().get_lr();
      lines.push_back(fmt::format("lr {} in the optimizer's parameter group {}", rate, i));
    }
  }
}

void add_scaler(Lines& lines, const GradScaler& scaler) {
  if (!scaler.is_enabled()) return;
  const GradScalerState state = scaler.state();
  lines.push_back(
      fmt::format("scaler with scale {}, growth_factor {}, backoff_factor {}, "
                  "growth_interval {}",
                  state.scale, state.growth_factor, state.backoff_factor, state.growth_interval));
}

void add_fit(Lines& lines, const FitOptions& fit) {
  lines.push_back("sampler " + (fit.sampler != nullptr ? fit.sampler->description() : "none"));
  lines.push_back(fmt::format("{} evaluate", fit.evaluate ? "a function" : "no function"));
}

}  // namespace

void check_same_training(ProcessGroup& group, const TrainerOptions& options,
                         const std::optional<optim::LRSchedule>& schedule, const FitOptions& fit,
                         const torch::optim::Optimizer& optimizer, const GradScaler& scaler) {
  if (group.size() == 1) return;
  const CallScope scope(CallOrigin::trainer);
  Lines lines;
  add_options(lines, options);
  add_schedule(lines, schedule);
  add_optimizer(lines, optimizer);
  add_scaler(lines, scaler);
  add_fit(lines, fit);
  check_agreement(group, "Trainer", lines, "training");
}

void check_same_number(ProcessGroup& group, double number, const char* what, const char* remedy) {
  if (group.size() == 1) return;
  const CallScope scope(CallOrigin::trainer);
  const std::vector<double> numbers = all_gather_object(number, group);
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  for (std::size_t rank = 1; rank < numbers.size(); ++rank) {
    if (bits(numbers[rank]) == bits(numbers[0])) continue;
    throw UsageError(
        trainer_on(group),
        fmt::format("{} is {} on rank 0 and {} on rank {}", what, numbers[0], numbers[rank], rank),
        remedy);
  }
}

void check_same_parameters(ProcessGroup& group, const torch::nn::Module& module,
                           const std::string& trained) {
  if (group.size() == 1) return;
  const CallScope scope(CallOrigin::trainer);
  const std::vector<std::string> all = all_gather_object(std::string_view(trained), group);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto [other, first] = std::ranges::mismatch(all[rank], all[0]);
    if (other == all[rank].end() || first == all[0].end()) continue;
    const auto number = static_cast<std::size_t>(first - all[0].begin());
    const bool on_0 = *first == '1';
    throw UsageError(trainer_on(group),
                     fmt::format("parameter {} is {} on rank 0 and {} on rank {}",
                                 distinct_named_parameters(module).at(number).name,
                                 on_0 ? "trained" : "frozen", on_0 ? "frozen" : "trained", rank),
                     "freeze and unfreeze alike on every rank");
  }
}

}  // namespace lockstep
