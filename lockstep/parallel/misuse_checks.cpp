// SPDX-License-Identifier: BSD-3-Clause
// Compares parameters with what they were, hashes the state of a generator, and compares counts of
// updates between ranks.
#include "lockstep/parallel/misuse_checks.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

// Empty if it has not changed.
std::string change_since(const GradientSize& then, at::IntArrayRef sizes_then,
                         const at::Tensor& now) {
  if (!now.requires_grad()) return "was frozen";
  if (now.scalar_type() != then.dtype) {
    return fmt::format("was converted from {} to {}", c10::toString(then.dtype),
                       c10::toString(now.scalar_type()));
  }
  if (now.device() != then.device) {
    return fmt::format("was moved from {} to {}", then.device.str(), now.device().str());
  }
  if (now.sizes() != sizes_then) {
    return fmt::format("was resized from [{}] to [{}]", fmt::join(sizes_then, ", "),
                       fmt::join(now.sizes(), ", "));
  }
  return "";
}

}  // namespace

WrappedParameters::WrappedParameters(const std::vector<NamedTensor>& parameters,
                                     ErrorContext context)
    : context_(std::move(context)) {
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    parameters_.push_back({.named = parameter,
                           .requires_grad = tensor.requires_grad(),
                           .size = {tensor.numel(), tensor.scalar_type(), tensor.device()},
                           .sizes = tensor.sizes().vec()});
  }
}

void WrappedParameters::check() const {
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& now = parameter.named.tensor;
    if (!parameter.requires_grad) {
      if (now.requires_grad()) refuse_change(parameter.named.name, "was unfrozen");
      continue;
    }
    const std::string change = change_since(parameter.size, parameter.sizes, now);
    if (!change.empty()) refuse_change(parameter.named.name, change);
  }
}

void WrappedParameters::refuse_change(const std::string& parameter,
                                      const std::string& change) const {
  throw UsageError(
      context_,
      fmt::format("parameter {} {} after the model was wrapped, so its gradients would "
                  "not be reduced",
                  parameter, change),
      "change the model first, then wrap it");
}

KnownParameters::KnownParameters(const torch::nn::Module& module, ErrorContext context)
    : module_(&module), context_(std::move(context)) {
  for (const at::Tensor& parameter : distinct_parameters(module)) {
    known_.push_back(parameter.unsafeGetTensorImpl());
  }
}

void KnownParameters::warn_of_new() {
  // Listing parameters takes microseconds, which small models would notice in each step.
  constexpr std::uint64_t kForwardsPerLook = 64;
  if (warned_ || forwards_++ % kForwardsPerLook != 0) return;
  for (const auto& [name, parameter] : distinct_named_parameters(*module_)) {
    const auto* tensor = parameter.unsafeGetTensorImpl();
    const bool known = std::find(known_.begin(), known_.end(), tensor) != known_.end();
    if (known || !parameter.requires_grad()) continue;
    warned_ = true;
    libtorch::warn(
        "forward",
        fmt::format(
            "{}the module got parameter {} after it was wrapped. Its gradients are not reduced, "
            "and the ranks' values of it will differ. Build the whole model first, then wrap it",
            context_.prefix(), name));
    return;
  }
}

std::int64_t FirstDraw::state_hash() const {
  if (!device_.is_cpu() && !device_.is_cuda()) return 0;
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  const std::lock_guard lock(generator.mutex());
  return static_cast<std::int64_t>(tensor_hash(generator.get_state()));
}

// Only one rank warns, to avoid a warning from each of them.
void warn_of_equal_draws(const ProcessGroup& group, std::int64_t own_draw,
                         std::int64_t draw_of_rank_0) {
  if (group.rank() != 1 || own_draw == 0 || own_draw != draw_of_rank_0) return;
  const ErrorContext context = group.context("reducer");
  libtorch::warn("forward", context.prefix() +
                                "forward drew the same random numbers as on rank 0, so that both "
                                "drop the same elements. Seed the ranks differently: "
                                "lockstep::seed_everything(seed, group)");
}

int UpdateCount::code() const {
  // The upper bits of a multiple of the golden ratio.
  return static_cast<int>((static_cast<std::uint64_t>(count()) * 0x9e37'79b9'7f4a'7c15) >> 61);
}

std::string UpdateCount::compare(ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  if (skipped_++ < skips_) return {};
  const at::Tensor hashes = at::empty({static_cast<std::int64_t>(parameters.size())}, at::kLong);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    hashes.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(tensor_hash(parameters[i]));
  }
  const at::Tensor mine = at::empty({2}, at::kLong);
  mine.data_ptr<std::int64_t>()[0] = count();
  mine.data_ptr<std::int64_t>()[1] = static_cast<std::int64_t>(tensor_hash(hashes));
  const at::Tensor all = at::empty({group.size(), 2}, at::kLong);
  group.all_gather_into_tensor(all, mine).wait();
  const at::Tensor models = all.select(1, 1);
  if (models.eq(models[0]).all().item<bool>()) {
    agreed_ = changes_;
    skipped_ = 0;
    skips_ = std::min(2 * skips_ + 1, 1023);
    return {};
  }
  int other = 0;
  const auto count_of = [&](int rank) { return all.data_ptr<std::int64_t>()[2 * rank]; };
  while (other + 1 < group.size() && count_of(other) == count()) ++other;
  return fmt::format(
      "the ranks are in different steps: their parameters differ, after {} in-place changes on "
      "this rank and {} on rank {}. Closures that ranks call differently often (LBFGS, a line "
      "search) are the usual cause: return the ranks' mean loss from them, "
      "functional::all_reduce(loss.detach(), group, ReduceOp::mean). Skip a step on all ranks or "
      "on none",
      count(), count_of(other), other);
}

}  // namespace lockstep
