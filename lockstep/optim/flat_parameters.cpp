// SPDX-License-Identifier: BSD-3-Clause
// Lays parameters into flat memory, and gathers the ranks' parts of it.
#include "lockstep/optim/flat_parameters.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/kernels/element_types.h"

namespace lockstep::optim {
namespace {

constexpr std::int64_t kCacheLine = 64;

std::int64_t rounded_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

// The strides that a parameter keeps in flat memory.
std::vector<std::int64_t> strides_of(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::kMeta).strides().vec();
}

}  // namespace

FlatParameters::FlatParameters(std::string_view owner, std::vector<at::Tensor> parameters,
                               ProcessGroup& group)
    : owner_(owner), parameters_(std::move(parameters)), group_(group) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto same = [&](const Buffer& buffer) {
      const at::Tensor& other = parameters_[buffer.members.front()];
      return other.scalar_type() == parameters_[i].scalar_type() &&
             other.device() == parameters_[i].device();
    };
    auto buffer = std::find_if(buffers_.begin(), buffers_.end(), same);
    if (buffer == buffers_.end()) buffer = buffers_.insert(buffer, Buffer{});
    buffer->members.push_back(i);
  }
  for (Buffer& buffer : buffers_) lay_out(buffer);
}

void FlatParameters::lay_out(Buffer& buffer) {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters_[buffer.members.front()];
  const std::int64_t line = kCacheLine / first.element_size();
  std::int64_t elements = 0;
  for (const std::size_t number : buffer.members) {
    buffer.offsets.push_back(elements);
    elements += rounded_up(parameters_[number].numel(), line);
  }
  buffer.share = rounded_up(elements, line * group_.size()) / group_.size();
  // As in Bucket: views below autograd are independent tensors that share the memory.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  buffer.memory = group_.empty({buffer.share * group_.size()}, first.options());
  buffer.memory.zero_();
  const ElementRange own{group_.rank() * buffer.share, buffer.share};
  for (std::size_t i = 0; i < buffer.members.size(); ++i) {
    const at::Tensor& parameter = parameters_[buffer.members[i]];
    const std::int64_t offset = buffer.offsets[i];
    const at::Tensor view = buffer.memory.as_strided(parameter.sizes(), strides_of(parameter),
                                                     buffer.memory.storage_offset() + offset);
    view.copy_(parameter);
    parameter.set_data(view);
    const ElementRange part = overlap({offset, parameter.numel()}, own);
    if (part.count > 0)
      own_parts_.push_back({buffer.members[i], parameter, {part.begin - offset, part.count}});
  }
}

void FlatParameters::check() const {
  for (const Buffer& buffer : buffers_) {
    for (std::size_t i = 0; i < buffer.members.size(); ++i) {
      const at::Tensor& parameter = parameters_[buffer.members[i]];
      if (parameter.is_alias_of(buffer.memory) &&
          parameter.storage_offset() == buffer.memory.storage_offset() + buffer.offsets[i]) {
        continue;
      }
      throw UsageError(fmt::format(
          "{}, rank {} of {}: parameter {} has been moved out of the optimizer's memory, by to(), "
          "set_data() or a second sharded optimizer. Convert and load a model before you make its "
          "optimizer, and copy values into parameters instead of replacing them",
          owner_, group_.rank(), group_.size(), buffer.members[i]));
    }
  }
}

void FlatParameters::exchange() {
  std::vector<Work> works;
  for (const Buffer& buffer : buffers_) {
    const at::Tensor own = buffer.memory.narrow(0, group_.rank() * buffer.share, buffer.share);
    works.push_back(group_.all_gather_into_tensor(buffer.memory, own));
  }
  for (Work& work : works) work.wait();
}

std::vector<at::Tensor> FlatParameters::whole(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> result(parameters_.size());
  std::size_t next = 0;
  for (const Buffer& buffer : buffers_) {
    const auto options = buffer.memory.options().dtype(state_type(buffer.memory.scalar_type()));
    const at::Tensor own = at::zeros({buffer.share}, options);
    const ElementRange range{group_.rank() * buffer.share, buffer.share};
    for (std::size_t i = 0; i < buffer.members.size(); ++i) {
      const at::Tensor& parameter = parameters_[buffer.members[i]];
      const ElementRange part = overlap({buffer.offsets[i], parameter.numel()}, range);
      if (part.count == 0) continue;
      const at::Tensor& values = parts[next++];
      if (values.defined()) own.narrow(0, part.begin - range.begin, part.count).copy_(values);
    }
    const at::Tensor all = at::empty({buffer.share * group_.size()}, options);
    group_.all_gather_into_tensor(all, own).wait();
    for (std::size_t i = 0; i < buffer.members.size(); ++i) {
      const at::Tensor& parameter = parameters_[buffer.members[i]];
      result[buffer.members[i]] =
          all.as_strided(parameter.sizes(), parameter.strides(), buffer.offsets[i]).clone();
    }
  }
  return result;
}

}  // namespace lockstep::optim
