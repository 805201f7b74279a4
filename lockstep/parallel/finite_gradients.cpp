// SPDX-License-Identifier: BSD-3-Clause
// Scans the bits of CPU tensors in parallel and in one pass, calls the kernels of libtorch on GPUs,
// and exchanges findings only if a sum is not finite.
#include "lockstep/parallel/finite_gradients.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Bytes that are worth another thread, and bytes between two checks of the other threads' result.
constexpr std::int64_t kScanGrain = 256 * 1024;
constexpr std::int64_t kScanBlock = 16 * 1024;

// An element is not finite if all bits of its exponent are set: then adding the lowest exponent bit
// carries into the sign. Branch-free within a block, so that the compiler can vectorize it.
template <class Bits>
bool is_finite(const std::byte* elements, std::int64_t count, Bits exponent) {
  const auto lowest = static_cast<Bits>(exponent & (~exponent + 1u));
  Bits carried = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits element;
    std::memcpy(&element, elements + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    carried = static_cast<Bits>(carried | ((element & exponent) + lowest));
  }
  constexpr int kSign = 8 * sizeof(Bits) - 1;
  return (carried >> kSign & 1) == 0;
}

template <class Bits>
bool is_finite(const at::Tensor& dense, Bits exponent) {
  constexpr std::int64_t kSize = sizeof(Bits);
  const auto* const elements = static_cast<const std::byte*>(dense.data_ptr());
  const std::int64_t count = static_cast<std::int64_t>(dense.nbytes()) / kSize;
  std::atomic<bool> finite = true;
  at::parallel_for(0, count, kScanGrain / kSize, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end && finite.load(std::memory_order_relaxed); begin += kScanBlock / kSize) {
      const std::int64_t length = std::min(kScanBlock / kSize, end - begin);
      if (!is_finite(elements + begin * kSize, length, exponent)) finite = false;
    }
  });
  return finite;
}

// A complex element is two adjacent real ones.
bool is_finite_on_cpu(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() && !is_lazy(tensor)) {
    switch (c10::toRealValueType(tensor.scalar_type())) {
      case at::kFloat:
        return is_finite<std::uint32_t>(tensor, 0x7f80'0000u);
      case at::kDouble:
        return is_finite<std::uint64_t>(tensor, 0x7ff0'0000'0000'0000u);
      case at::kHalf:
        return is_finite<std::uint16_t>(tensor, 0x7c00u);
      case at::kBFloat16:
        return is_finite<std::uint16_t>(tensor, 0x7f80u);
      default:
        break;
    }
  }
  return at::isfinite(tensor).all().item<bool>();
}

// The types of the kernel below in every libtorch.
bool can_be_checked_together(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.is_cuda() && tensor.is_non_overlapping_and_dense() &&
         (type == at::kFloat || type == at::kDouble || type == at::kHalf);
}

// Whether all are finite, as a bool on their GPU. They have one type. PyTorch's GradScaler
// uses the same kernel, which would also unscale them: it multiplies them by 1.
at::Tensor check_together(const std::vector<at::Tensor>& tensors) {
  const at::TensorOptions options = tensors.front().options().dtype(at::kFloat);
  at::Tensor found_inf = at::zeros({}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_inf, at::ones({}, options));
  return found_inf.eq(0);
}

std::string finding(const std::string& name, const std::vector<int>& ranks) {
  if (ranks.empty()) {
    return fmt::format("the gradient of {} overflows in the sum, though it is finite on every rank",
                       name);
  }
  return fmt::format("the gradient of {} is not finite on {}", name, rank_list(ranks));
}

}  // namespace

FiniteCheck::FiniteCheck(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor.is_cpu()) {
    passes_ = is_finite_on_cpu(tensor);
  } else {
    on_device_ = at::isfinite(tensor).all();
  }
}

bool FiniteCheck::passes() const {
  return on_device_.defined() ? on_device_.item<bool>() : passes_;
}

bool all_finite(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  using GpuAndType = std::pair<int, at::ScalarType>;
  std::map<GpuAndType, std::vector<at::Tensor>> together;
  std::vector<at::Tensor> on_devices;
  for (const at::Tensor& tensor : tensors) {
    // If the last of a list is empty, the kernels of libtorch 2.0 pass over some of the others.
    if (tensor.numel() == 0) continue;
    if (tensor.is_cpu()) {
      if (!is_finite_on_cpu(tensor)) return false;
    } else if (can_be_checked_together(tensor)) {
      together[{tensor.device().index(), tensor.scalar_type()}].push_back(tensor);
    } else {
      on_devices.push_back(at::isfinite(tensor).all());
    }
  }
  for (const auto& [kind, same_kind] : together) {
    on_devices.push_back(check_together(same_kind));
  }
  if (on_devices.empty()) return true;
  for (at::Tensor& finite : on_devices) finite = finite.to(on_devices.front().device());
  return at::stack(on_devices).all().item<bool>();
}

std::string first_of(const std::vector<std::string>& findings) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(findings.size(), kMost); ++i) {
    text += (i == 0 ? "" : "; ") + findings[i];
  }
  if (findings.size() > kMost) {
    text += fmt::format("; {} more parameters", findings.size() - kMost);
  }
  return text;
}

std::string describe_not_finite(const std::vector<std::string>& parameters, const NotFinite& found,
                                const NotFinite& own, ProcessGroup& group) {
  const at::Tensor mine = at::empty({static_cast<std::int64_t>(own.size())}, at::kByte);
  std::ranges::copy(own, mine.data_ptr<std::uint8_t>());
  const at::Tensor all = at::empty({group.size(), mine.numel()}, at::kByte);
  group.all_gather_into_tensor(all, mine).wait();
  std::vector<std::string> findings;
  for (std::size_t parameter = 0; parameter < parameters.size(); ++parameter) {
    if (found[parameter] == 0) continue;
    std::vector<int> ranks;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (all[rank].data_ptr<std::uint8_t>()[parameter] != 0) ranks.push_back(rank);
    }
    findings.push_back(finding(parameters[parameter], ranks));
  }
  return first_of(findings);
}

FiniteGradients::FiniteGradients(std::vector<std::string> parameters)
    : names_(std::move(parameters)), contributed_(names_.size()), found_(names_.size()) {}

void FiniteGradients::contributed(int parameter, const at::Tensor& gradient) {
  contributed_[static_cast<std::size_t>(parameter)] =
      gradient.defined() ? FiniteCheck(gradient) : FiniteCheck();
}

void FiniteGradients::reduced(const Bucket& bucket) {
  if (FiniteCheck(bucket.means()).passes()) return;
  for (int index = 0; index < bucket.size(); ++index) {
    const at::Tensor means = bucket.is_divided() ? bucket.own_part(index) : bucket.gradient(index);
    if (FiniteCheck(means).passes()) continue;
    const int parameter = bucket.parameters()[static_cast<std::size_t>(index)];
    found_[static_cast<std::size_t>(parameter)] = 1;
  }
}

std::string FiniteGradients::conclude(ProcessGroup& group) {
  if (std::ranges::count(found_, 1) == 0) return {};
  const NotFinite found = std::exchange(found_, NotFinite(names_.size()));
  NotFinite own;
  for (const FiniteCheck& check : contributed_) own.push_back(check.passes() ? 0 : 1);
  return describe_not_finite(names_, found, own, group);
}

}  // namespace lockstep
