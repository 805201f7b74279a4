// SPDX-License-Identifier: BSD-3-Clause
// Lays the views of gradients over the buffer of a bucket, copies gradients into it, traces its
// reduction, and shows it to communication hooks.
#include "lockstep/parallel/bucket.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "lockstep/parallel/comm_hook.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/kernels/stream_copy.h"

namespace lockstep {
namespace {

// Smaller gradients fit into a core's own cache, and are reduced fastest from the bucket, where the
// results go. For larger ones it pays to avoid a copy, or to copy past the caches.
constexpr std::size_t kLarge = 1024 * 1024;

// The smallest part of a copy for one thread, in bytes.
constexpr std::int64_t kCopyGrain = 256 * 1024;

// Faster than the dispatcher's copy, since no conversion is needed and memcpy suits this processor.
void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  at::parallel_for(0, bytes, kCopyGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

void copy_past_caches(std::byte* to, const std::byte* from, std::int64_t bytes) {
  at::parallel_for(0, bytes, kLarge, [&](std::int64_t begin, std::int64_t end) {
    stream_copy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
    finish_streaming();
  });
}

// Whether their bytes are in the same order.
bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && b.is_non_overlapping_and_dense() && !is_lazy(b);
}

}  // namespace

Bucket::Bucket(int index, const PlannedBucket& plan, std::span<const at::Tensor> parameters,
               ProcessGroup& group, bool divided)
    : index_(index), parameters_(plan.parameters), divided_(divided), offsets_(plan.offsets) {
  // optimizer.zero_grad() detaches gradients in place, which autograd refuses for its views. Views
  // made below its dispatch keys are independent tensors that share the memory.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor& first = parameters[static_cast<std::size_t>(plan.parameters.front())];
  const c10::ScalarType dtype = first.scalar_type();
  const c10::ScalarType real = c10::toRealValueType(dtype);
  const auto options = at::TensorOptions().dtype(real).device(first.device());
  const int reals = real == dtype ? 1 : 2;
  share_ = share_of_rank(plan, first.element_size(), group.rank(), group.size());
  const std::int64_t elements = divided ? share_.count * group.size() : plan.elements;
  share_ = {share_.begin * reals, share_.count * reals};
  flat_ = group.empty({elements * reals}, options);
  flat_.zero_();  // padding is reduced too: no slow or trapping bit patterns
  means_ = divided ? flat_.narrow(0, share_.begin, share_.count) : flat_;
  if (reals == 1 && !divided) in_place_ = group.own_share(flat_);
  const at::Tensor typed = real == dtype ? flat_ : at::view_as_complex(flat_.view({-1, 2}));

  const std::int64_t start = typed.storage_offset();
  gradients_.reserve(plan.parameters.size());
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[static_cast<std::size_t>(plan.parameters[i])];
    const std::int64_t offset = start + plan.offsets[i];
    if (parameter.is_non_overlapping_and_dense()) {
      gradients_.push_back(typed.as_strided(parameter.sizes(), parameter.strides(), offset));
    } else {
      gradients_.push_back(
          typed.narrow(0, plan.offsets[i], parameter.numel()).view(parameter.sizes()));
    }
  }
  for (const at::Tensor& view : gradients_) exposed_.push_back(expose(view));
  trailer_ = typed.narrow(0, plan.trailer, size());

  element_size_ = static_cast<std::size_t>(typed.element_size());
  const at::Tensor one = at::ones({1}, at::TensorOptions().dtype(dtype));
  std::memcpy(one_.data(), one.data_ptr(), element_size_);
  if (trailer_.is_cpu()) trailer_bytes_ = static_cast<std::byte*>(trailer_.data_ptr());
}

ElementRange Bucket::range_of(int i) const {
  return {offsets_[static_cast<std::size_t>(i)], gradients_[static_cast<std::size_t>(i)].numel()};
}

at::Tensor Bucket::expose(const at::Tensor& view) const {
  return at::from_blob(
      view.data_ptr(), view.sizes(), view.strides(), [flat = flat_](void*) {}, view.options());
}

// Their storage gets new memory, and with it all tensors that share it.
void Bucket::leave_to_holders(int i) {
  at::Tensor& exposed = exposed_[static_cast<std::size_t>(i)];
  if (exposed.use_count() == 1 && exposed.storage().use_count() == 1) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto bytes = static_cast<std::int64_t>(exposed.storage().nbytes());
  const auto options = exposed.options().dtype(at::kByte);
  const at::Tensor old = at::from_blob(exposed.data_ptr(), {bytes}, options);
  const at::Tensor kept = at::empty({bytes}, options);
  kept.copy_(old);
  exposed.storage().set_data_ptr(kept.storage().set_data_ptr(at::DataPtr(nullptr, kept.device())));
  exposed = expose(gradients_[static_cast<std::size_t>(i)]);
}

at::Tensor Bucket::own_part(int i) const {
  const bool is_complex = c10::isComplexType(trailer_.scalar_type());
  const int reals = is_complex ? 2 : 1;
  const ElementRange whole = range_of(i);
  const ElementRange part = overlap({whole.begin * reals, whole.count * reals}, share_);
  const at::Tensor real = flat_.narrow(0, part.count == 0 ? 0 : part.begin, part.count);
  return is_complex ? at::view_as_complex(real.view({-1, 2})) : real;
}

void Bucket::take(int i, const at::Tensor& gradient) {
  leave_to_holders(i);
  const at::Tensor& view = gradients_[static_cast<std::size_t>(i)];
  const ElementRange whole = range_of(i);
  std::erase_if(pieces_, [&](const Piece& piece) { return whole.contains(piece.range()); });
  if (!alike(view, gradient)) {
    view.copy_(gradient);
    return;
  }
  auto* const to = static_cast<std::byte*>(view.data_ptr());
  const auto* const from = static_cast<const std::byte*>(gradient.data_ptr());
  if (gradient.nbytes() < kLarge) {
    copy(to, from, static_cast<std::int64_t>(gradient.nbytes()));
    return;
  }
  const std::int64_t element_size = gradient.element_size();
  ElementRange stays = overlap(whole, in_place_);
  if (static_cast<std::size_t>(stays.count * element_size) < kLarge) stays = {whole.begin, 0};
  const auto copy_elements = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t offset = (begin - whole.begin) * element_size;
    copy_past_caches(to + offset, from + offset, (end - begin) * element_size);
  };
  copy_elements(whole.begin, stays.begin);
  copy_elements(stays.end(), whole.end());
  if (stays.count == 0) return;
  const at::Tensor values = gradient.as_strided({whole.count}, {1});
  pieces_.push_back({stays.begin, values.narrow(0, stays.begin - whole.begin, stays.count)});
}

void Bucket::take_zeros(int i) {
  leave_to_holders(i);
  std::erase_if(pieces_, [&](const Piece& piece) { return range_of(i).contains(piece.range()); });
  gradients_[static_cast<std::size_t>(i)].zero_();
}

void Bucket::complete(int i) {
  std::erase_if(pieces_, [&](const Piece& piece) {
    if (!range_of(i).contains(piece.range())) return false;
    copy_into(flat_, piece);
    return true;
  });
}

void Bucket::complete() {
  for (int i = 0; i < size() && !pieces_.empty(); ++i) complete(i);
}

void Bucket::set_all_used() {
  if (!trailer_bytes_) {
    trailer_.fill_(1);
    return;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    std::memcpy(trailer_bytes_ + i * element_size_, one_.data(), element_size_);
  }
}

void Bucket::set_unused(int i) {
  if (!trailer_bytes_) {
    trailer_.select(0, i).zero_();
    return;
  }
  std::memset(trailer_bytes_ + static_cast<std::size_t>(i) * element_size_, 0, element_size_);
}

bool Bucket::is_nonzero(std::size_t trailer_element) const {
  const std::byte* const element = trailer_bytes_ + trailer_element * element_size_;
  return std::any_of(element, element + element_size_,
                     [](std::byte byte) { return byte != std::byte{0}; });
}

bool Bucket::used_by_any_rank(int i) const {
  if (!trailer_bytes_) return trailer_.select(0, i).ne(0).item<bool>();
  return is_nonzero(static_cast<std::size_t>(i));
}

void Bucket::set_update_code(int code) {
  if (!trailer_bytes_) return;
  std::byte* const codes = trailer_bytes_ + parameters_.size() * element_size_;
  std::memset(codes, 0, kUpdateCodes * element_size_);
  std::memcpy(codes + static_cast<std::size_t>(code) * element_size_, one_.data(), element_size_);
}

bool Bucket::has_one_update_code() const {
  if (!trailer_bytes_) return true;
  int found = 0;
  for (std::size_t code = 0; code < kUpdateCodes; ++code) {
    if (is_nonzero(parameters_.size() + code)) ++found;
  }
  return found == 1;
}

GradientBuckets::GradientBuckets(const std::vector<NamedTensor>& parameters, bool divided)
    : divided_(divided), places_(parameters.size()) {
  for (const auto& [name, tensor] : parameters) {
    parameters_.push_back(tensor);
    names_.push_back(name);
  }
}

void GradientBuckets::set_plan(std::vector<PlannedBucket> plan) {
  plan_ = std::move(plan);
  buckets_.reserve(plan_.size());
}

Bucket& GradientBuckets::add(ProcessGroup& group) {
  const PlannedBucket& planned = plan_[buckets_.size()];
  const int number = static_cast<int>(buckets_.size());
  buckets_.emplace_back(number, planned, parameters_, group, divided_);
  int index = 0;
  for (const int parameter : planned.parameters) {
    places_[static_cast<std::size_t>(parameter)] = {number, index++};
  }
  return buckets_.back();
}

std::size_t BucketLaunches::launch(bool travels) {
  State& bucket = buckets_[next_];
  const SpanRecorder* const recorder = SpanRecorder::active();
  bucket.launch = travels && recorder ? std::optional(recorder->launch()) : std::nullopt;
  bucket.launched = true;
  return next_++;
}

void BucketLaunches::poll() {
  if (oldest_ < next_ && buckets_[oldest_].reduction.poll()) trace_arrival(oldest_++);
}

void BucketLaunches::wait(std::size_t bucket) {
  buckets_[bucket].reduction.wait();
  trace_arrival(bucket);
}

void BucketLaunches::restart() {
  for (State& bucket : buckets_) {
    bucket.missing = bucket.gradients;
    bucket.launched = false;
  }
  next_ = 0;
  oldest_ = 0;
}

void BucketLaunches::drop() noexcept {
  for (State& bucket : buckets_) bucket.reduction = Work();
}

void BucketLaunches::trace_arrival(std::size_t bucket) {
  SpanRecorder* const recorder = SpanRecorder::active();
  std::optional<Launch>& launch = buckets_[bucket].launch;
  if (recorder == nullptr || !launch) return;
  recorder->arrive("bucket", static_cast<std::int32_t>(bucket), *launch);
  launch.reset();
}

int GradBucket::index() const {
  return bucket_.index();
}
const at::Tensor& GradBucket::buffer() const {
  return bucket_.flat();
}
const std::vector<at::Tensor>& GradBucket::gradients() const {
  return bucket_.gradients();
}
const at::Tensor& GradBucket::trailer() const {
  return bucket_.trailer();
}
const std::vector<int>& GradBucket::parameters() const {
  return bucket_.parameters();
}

}  // namespace lockstep
