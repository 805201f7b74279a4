// SPDX-License-Identifier: BSD-3-Clause
// Drops what autograd saves, and fills it in from a repetition of the forward.
#include "lockstep/parallel/activation_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/DimVector.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/forward_state.h"
#include "lockstep/parallel/kept_state.h"
#include "lockstep/parallel/microbatch.h"
#include "lockstep/parallel/saved_tensors.h"

namespace lockstep {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

constexpr const char* kCheckpoint = "checkpoint";

[[noreturn]] void refuse_repetition(const std::string& cause, const std::string& remedy) {
  throw UsageError({.component = kCheckpoint, .operation = "repeating a forward"}, cause, remedy);
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// What shows whether a saved tensor is the same in the repetition.
class Fingerprint {
 public:
  explicit Fingerprint(const at::Tensor& tensor)
      : sizes_(tensor.sizes()),
        type_(tensor.scalar_type()),
        device_(tensor.device()),
        version_(version_of(tensor)),
        is_leaf_(tensor.is_leaf()) {
    // Others may have no values yet, such as the running mean that BatchNorm is about to update.
    const bool is_computed = tensor.requires_grad() && at::isFloatingType(type_);
    if (!is_computed || !tensor.is_cpu() || tensor.layout() != at::kStrided ||
        !tensor.is_non_overlapping_and_dense()) {
      return;
    }
    bytes_ = std::min(tensor.nbytes(), values_.size());
    if (bytes_ > 0) std::memcpy(values_.data(), tensor.data_ptr(), bytes_);
  }

  // Returns what differs from the first forward; empty if nothing does.
  std::string difference(const Fingerprint& first) const {
    if (sizes_ != first.sizes_) {
      return fmt::format("has the shape {}, and had {}", in_words(sizes_), in_words(first.sizes_));
    }
    if (type_ != first.type_) {
      return fmt::format("is of type {}, and was of {}", c10::toString(type_),
                         c10::toString(first.type_));
    }
    if (device_ != first.device_) {
      return fmt::format("is on {}, and was on {}", device_.str(), first.device_.str());
    }
    if (version_ != first.version_) {
      return fmt::format("has been changed in place {} times, and had been {} times", version_,
                         first.version_);
    }
    return same_values(first) ? "" : "has other values";
  }

 private:
  static std::string in_words(at::IntArrayRef sizes) {
    return fmt::format("[{}]", fmt::join(sizes, ", "));
  }

  at::Tensor values() const {
    const auto count = static_cast<std::int64_t>(bytes_ / c10::elementSize(type_));
    return at::from_blob(const_cast<std::byte*>(values_.data()), {count}, type_).to(at::kDouble);
  }

  // Kernels with several threads may round differently; leaves are not computed.
  bool same_values(const Fingerprint& first) const {
    if (bytes_ != first.bytes_) return false;
    if (std::memcmp(values_.data(), first.values_.data(), bytes_) == 0) return true;
    if (is_leaf_) return false;
    const double epsilon = type_ == at::kBFloat16 ? 0x1p-7 : type_ == at::kHalf ? 0x1p-10 : 0;
    const double tolerance = std::max(1e-3, 16 * epsilon);
    const at::Tensor before = first.values();
    const at::Tensor now = values();
    const auto largest = at::stack({before, now}).abs().nan_to_num().max().item<double>();
    return at::allclose(now, before, /*rtol=*/0, tolerance * largest, /*equal_nan=*/true);
  }

  c10::DimVector sizes_;
  at::ScalarType type_;
  at::Device device_;
  std::uint32_t version_;
  bool is_leaf_;
  alignas(8) std::array<std::byte, 64> values_ = {};  // the first ones
  std::size_t bytes_ = 0;
};

// The place of one tensor that autograd saved. Empty, except from a repetition to its use.
struct SavedSlot {
  at::Tensor tensor;
  std::uint32_t version = 0;  // of the tensor, when it was saved
};

struct SavedOnce {
  Fingerprint seen;
  std::weak_ptr<SavedSlot> slot;  // its node owns it
};

// Keeps what a repetition saves in the slots that are still in use, and then stops it.
class Repetition final : public SavedTensorKeeper {
 public:
  explicit Repetition(const std::vector<SavedOnce>& saved) : saved_(saved) {
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const auto slot = saved[i].slot.lock();
      if (slot && !slot->tensor.defined()) needed_ = i + 1;
    }
  }

  std::unique_ptr<SavedVariableHooks> make_hooks() override;
  void save(const at::Tensor& tensor) {
    const Fingerprint now(tensor);
    const SavedOnce& first = saved_.at(next_);
    const std::string difference = now.difference(first.seen);
    if (!difference.empty()) {
      refuse_repetition(
          fmt::format("tensor {} of {} that autograd saves {}", next_, saved_.size(), difference),
          "let the function depend only on its inputs, on parameters that do not change before "
          "backward, and on PyTorch's random numbers (in a DataParallel, replicas share them: "
          "leave dropout outside, or train with DistributedDataParallel)");
    }
    const auto slot = first.slot.lock();
    if (slot && !slot->tensor.defined()) {
      slot->tensor = tensor.detach();
      slot->version = version_of(tensor);
    }
    if (++next_ < needed_) return;
    is_complete_ = true;
    throw Stop();
  }
  // Whether an exception from the repetition is save()'s.
  bool is_complete() const { return is_complete_; }

 private:
  // Not derived from std::exception, which functions are more likely to catch.
  struct Stop {};

  const std::vector<SavedOnce>& saved_;
  std::size_t needed_ = 0;
  std::size_t next_ = 0;
  bool is_complete_ = false;
};

// The hooks of a tensor in the graph of a repetition, which backwards within the function use.
class RepeatedHooks final : public SavedVariableHooks {
 public:
  explicit RepeatedHooks(Repetition& repetition) : repetition_(repetition) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    repetition_.save(tensor);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Repetition& repetition_;
  at::Tensor tensor_;
};

std::unique_ptr<SavedVariableHooks> Repetition::make_hooks() {
  return std::make_unique<RepeatedHooks>(*this);
}

// An input, saved as a node would: within another checkpoint() it is dropped and repeated too.
struct SavedInput {
  explicit SavedInput(const at::Tensor& input)
      : accumulator(accumulator_of(input)), tensor(input, /*is_output=*/false) {
    if (!input.defined()) return;
    counter = input.unsafeGetTensorImpl()->version_counter();
    version = counter->current_version();
  }
  bool has_changed() const { return counter && counter->current_version() != version; }

  // Libtorch 1.13 keeps only a weak reference to a leaf's accumulator, which no graph has yet.
  static libtorch::NodePointer accumulator_of(const at::Tensor& input) {
    if (!input.defined() || !input.requires_grad() || !input.is_leaf()) return {};
    return torch::autograd::impl::grad_accumulator(input);
  }

  libtorch::NodePointer accumulator;
  SavedVariable tensor;
  std::optional<c10::VariableVersion> counter;
  std::uint32_t version = 0;
};

std::vector<at::Device> other_devices(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Device> devices;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || input.is_cpu()) continue;
    if (std::ranges::find(devices, input.device()) == devices.end()) {
      devices.push_back(input.device());
    }
  }
  return devices;
}

// One call of checkpoint(). Owned by the nodes that have saved tensors in it.
class CheckpointedForward final : public SavedTensorKeeper,
                                  public std::enable_shared_from_this<CheckpointedForward> {
 public:
  CheckpointedForward(const std::vector<at::Tensor>& inputs, detail::RepeatedForward repeat,
                      std::shared_ptr<torch::nn::Module> module)
      : repeat_(std::move(repeat)),
        module_(std::move(module)),
        devices_(other_devices(inputs)),
        random_(devices_) {
    inputs_.reserve(inputs.size());
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input);
    if (const Microbatch* computed = MicrobatchScope::current()) microbatch_ = *computed;
    if (devices_.empty()) return;
    current_device_ = c10::impl::VirtualGuardImpl(devices_.front().type()).getDevice();
  }

  std::unique_ptr<SavedVariableHooks> make_hooks() override;
  std::shared_ptr<SavedSlot> save(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    auto slot = std::make_shared<SavedSlot>();
    saved_.push_back({Fingerprint(tensor), slot});
    return slot;
  }

  void finish() {
    if (saved_.empty()) return;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].has_changed()) continue;
      throw UsageError({.component = kCheckpoint},
                       fmt::format("the function changed its input {} in place, and could not "
                                   "start from it again in backward",
                                   i),
                       "let it change a clone, or use the operation that returns a new tensor");
    }
    if (random_ && RandomState(devices_) == *random_) random_.reset();
  }

  // The tensor of a slot, for backward.
  at::Tensor take(SavedSlot& slot) {
    const std::lock_guard lock(mutex_);
    if (!slot.tensor.defined()) repeat();
    if (!slot.tensor.defined()) {
      refuse_repetition("the function saved fewer tensors for backward than in the first forward",
                        "let it take the same branches every time");
    }
    // Autograd does not check the versions of tensors that went through hooks.
    if (version_of(slot.tensor) != slot.version) {
      refuse_repetition("the function changed a tensor in place after autograd had saved it",
                        "use the operation that returns a new tensor");
    }
    return std::exchange(slot.tensor, at::Tensor());
  }

 private:
  void repeat();

  std::vector<SavedInput> inputs_;
  detail::RepeatedForward repeat_;
  std::shared_ptr<torch::nn::Module> module_;
  ForwardState state_;
  std::vector<at::Device> devices_;
  c10::optional<at::Device> current_device_;
  std::optional<Microbatch> microbatch_;  // at the start of the forward, with its draws so far
  std::optional<RandomState> random_;     // empty if the forward drew no numbers
  std::vector<SavedOnce> saved_;
  // A repetition that asks for a tensor of its own first forward is refused.
  std::recursive_mutex mutex_;
  bool is_repeating_ = false;
};

// The hooks of a tensor in the graph of the first forward.
class DroppingHooks final : public SavedVariableHooks {
 public:
  explicit DroppingHooks(std::shared_ptr<CheckpointedForward> forward)
      : forward_(std::move(forward)) {}
  void call_pack_hook(const at::Tensor& tensor) override { slot_ = forward_->save(tensor); }
  at::Tensor call_unpack_hook() override { return forward_->take(*slot_); }

 private:
  std::shared_ptr<CheckpointedForward> forward_;
  std::shared_ptr<SavedSlot> slot_;
};

std::unique_ptr<SavedVariableHooks> CheckpointedForward::make_hooks() {
  return std::make_unique<DroppingHooks>(shared_from_this());
}

void CheckpointedForward::repeat() {
  if (is_repeating_) {
    refuse_repetition("the repeated function needs a tensor of its own first forward",
                      "do not keep the function's results for its next call");
  }
  std::vector<at::Tensor> inputs;
  for (const SavedInput& input : inputs_) {
    if (input.has_changed()) {
      refuse_repetition(
          fmt::format("input {} was changed in place after the forward", inputs.size()),
          "change a clone, or call backward first");
    }
    inputs.push_back(input.tensor.unpack());
  }
  is_repeating_ = true;
  const auto end = c10::make_scope_exit([this] { is_repeating_ = false; });
  const c10::OptionalDeviceGuard current(current_device_);
  const ForwardStateGuard state(state_);
  std::optional<MicrobatchScope> microbatch;
  if (microbatch_) microbatch.emplace(*microbatch_);
  std::optional<KeptRandomNumbers> kept_numbers;
  if (random_) {
    kept_numbers.emplace(devices_);
    random_->restore();
  }
  std::optional<KeptTensors> kept_buffers;
  if (module_) kept_buffers.emplace(module_->buffers());
  Repetition repetition(saved_);
  const SavedTensorGuard guard(repetition);
  try {
    repeat_(inputs);
  } catch (...) {
    if (!repetition.is_complete()) throw;
  }
}

}  // namespace

struct detail::CheckpointScope::Parts {
  template <class Forward>
  explicit Parts(const std::shared_ptr<Forward>& forward)
      : finish([forward] { forward->finish(); }), guard(*forward) {}

  std::function<void()> finish;  // owns the forward
  SavedTensorGuard guard;
};

detail::CheckpointScope::CheckpointScope(const std::vector<at::Tensor>& inputs,
                                         RepeatedForward repeat,
                                         std::shared_ptr<torch::nn::Module> module)
    : parts_(std::make_unique<Parts>(
          std::make_shared<CheckpointedForward>(inputs, std::move(repeat), std::move(module)))) {}

detail::CheckpointScope::~CheckpointScope() = default;

void detail::CheckpointScope::finish() {
  parts_->finish();
}

at::Tensor checkpoint_sequential(torch::nn::Sequential modules, int segments, at::Tensor input) {
  const auto size = static_cast<int>(modules->size());
  if (segments < 1 || segments > size) {
    throw UsageError({.component = "checkpoint_sequential"},
                     fmt::format("{} segments of {} modules", segments, size),
                     "give at least 1, and at most one for each module");
  }
  const int length = size / segments;
  auto module = modules->begin();
  for (int segment = 0; segment + 1 < segments; ++segment) {
    torch::nn::Sequential part;
    for (int i = 0; i < length; ++i) part->push_back(*module++);
    input = checkpoint(part, input);
  }
  for (; module != modules->end(); ++module) input = module->forward(input);
  return input;
}

}  // namespace lockstep
