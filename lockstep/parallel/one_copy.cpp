// SPDX-License-Identifier: BSD-3-Clause
// Lays parameters into common memory. The storage of such a parameter leads to a record of what the
// library knows of it.
#include "lockstep/parallel/one_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include "lockstep/comm/on_rank_0.h"
#include "lockstep/core/packed_error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/parallel/parameter_snapshot.h"

namespace lockstep {
namespace {

// Each parameter begins at a cache line, so that no two ranks own parts of the same one.
constexpr std::int64_t kCacheLine = 64;

std::int64_t whole_lines_of(const at::Tensor& parameter) {
  const auto lines = (static_cast<std::int64_t>(parameter.nbytes()) + kCacheLine - 1) / kCacheLine;
  return lines * kCacheLine;
}

struct CommonParameter {
  at::Tensor memory;
  bool is_common;  // until the parameter has got memory of this rank
  ParameterSnapshot accepted = {};
};

// The deleter of the storages of such parameters, by which they are known.
void release_common_parameter(void* record) {
  delete static_cast<CommonParameter*>(record);
}

// Null for other tensors.
CommonParameter* record_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &release_common_parameter) return nullptr;
  return static_cast<CommonParameter*>(data.get_context());
}

// A tensor like the other at this place of the memory. It has a storage of its own, so that
// torch::save of one parameter does not save all of them.
at::Tensor view_like(const at::Tensor& tensor, const at::Tensor& memory, std::int64_t offset,
                     bool is_common) {
  auto* const data = static_cast<std::byte*>(memory.data_ptr()) + offset;
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.nbytes(),
                       at::DataPtr(data, new CommonParameter{memory, is_common},
                                   &release_common_parameter, at::kCPU),
                       /*allocator=*/nullptr, /*resizable=*/false);
  const auto strides = tensor.is_non_overlapping_and_dense()
                           ? tensor.strides().vec()
                           : at::empty(tensor.sizes(), at::kMeta).strides().vec();
  return at::empty({0}, tensor.options().device(at::kCPU))
      .set_(storage, 0, tensor.sizes(), strides);
}

void require_suitable(const std::vector<NamedTensor>& parameters, const ErrorContext& context) {
  std::unordered_map<const void*, const std::string*> at_address;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.is_cpu()) {
      throw UsageError(context,
                       fmt::format("one_copy_per_host is for parameters on the CPU, and {} is on "
                                   "{}",
                                   name, parameter.device().str()),
                       "leave one_copy_per_host off");
    }
    if (parameter.numel() == 0) continue;
    const auto [other, is_new] = at_address.emplace(parameter.data_ptr(), &name);
    if (is_new) continue;
    throw UsageError(
        context,
        fmt::format("parameters {} and {} are two tensors in the same memory, and would become "
                    "independent when they move into the memory of all ranks",
                    *other->second, name),
        "register one tensor under both names, or leave one_copy_per_host off");
  }
}

[[noreturn]] void refuse_group(const ProcessGroup& group, const ErrorContext& context) {
  const bool has_threads = group.backend() == "thread";
  throw UsageError(
      context,
      fmt::format("one_copy_per_host is for processes that share the memory of their host, over "
                  "backend shm or hierarchical; the ranks of this group {} (backend {})",
                  has_threads ? "are threads" : "exchange messages", group.backend()),
      has_threads ? "start the ranks as processes, or leave one_copy_per_host off"
                  : "leave the choice of the backend to init_process_group, or one_copy_per_host "
                    "off");
}

[[noreturn]] void rethrow_failure_of_rank_0(const std::string& packed, ErrorContext context) {
  context.operation = "change_parameters() on rank 0";
  try {
    std::rethrow_exception(unpack_error(packed));
  } catch (const Error&) {
    rethrow_within(context);
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> ranks_of_host(const std::shared_ptr<ProcessGroup>& group) {
  for (const std::vector<int>& ranks : group->hosts()) {
    if (std::ranges::find(ranks, group->rank()) != ranks.end()) return group->split(ranks);
  }
  return group;
}

bool has_one_copy(const at::Tensor& parameter) {
  const CommonParameter* const record = record_of(parameter);
  return record != nullptr && record->is_common;
}

void require_unchanged(const at::Tensor& parameter, const std::string& name,
                       const ErrorContext& caller) {
  const CommonParameter* const record = record_of(parameter);
  if (record == nullptr) {
    throw UsageError(caller,
                     fmt::format("parameter {} has been moved out of the memory in which the ranks "
                                 "have one copy of it, by torch::load, to() or set_data()",
                                 name),
                     "load and convert a model before you wrap it; load_state_dict and "
                     "CheckpointFolder, which copy values into parameters, may load it later");
  }
  if (!record->is_common) return;
  const ParameterSnapshot now = ParameterSnapshot::of(parameter);
  if (now == record->accepted) return;
  const bool here = now.version != record->accepted.version;
  throw UsageError(
      caller,
      fmt::format("parameter {} has been changed {}, and not by an optimizer of the wrapped model. "
                  "With one_copy_per_host the ranks have one copy of it: a change that each of "
                  "them makes is made once for each rank",
                  name, here ? "in place on this rank" : "by another rank or through data"),
      "make changes in model->change_parameters(function), which runs on one rank, and the "
      "optimizer from the wrapped model, as in lockstep::optim::Adam optimizer(model, 1e-3); or "
      "leave one_copy_per_host off");
}

at::Tensor common_tensor(const at::Tensor& like, const at::Tensor& memory, std::int64_t offset) {
  return view_like(like, memory, offset, /*is_common=*/true);
}

void accept_change(const at::Tensor& parameter) {
  CommonParameter* const record = record_of(parameter);
  if (record != nullptr) record->accepted = ParameterSnapshot::of(parameter);
}

void leave_one_copy(const at::Tensor& parameter) {
  if (!has_one_copy(parameter)) return;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor memory = at::empty({whole_lines_of(parameter)}, at::kByte);
  const at::Tensor own = view_like(parameter, memory, 0, /*is_common=*/false);
  own.copy_(parameter);
  parameter.set_data(own);
}

OneCopy::OneCopy(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
                 const char* owner)
    : parameters_(std::move(parameters)), group_(std::move(group)), owner_(owner) {
  const ErrorContext context = group_->context(owner_);
  require_suitable(parameters_, context);
  std::int64_t bytes = 0;
  for (const NamedTensor& parameter : parameters_) bytes += whole_lines_of(parameter.tensor);
  host_ = ranks_of_host(group_);
  const at::Tensor memory =
      host_->common_memory({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  if (!memory.defined()) refuse_group(*group_, context);
  move(memory);
}

// Each rank frees its own copy of a parameter before it goes on to the next.
void OneCopy::move(const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::int64_t offset = 0;
    for (const NamedTensor& parameter : parameters_) {
      const at::Tensor view = view_like(parameter.tensor, memory, offset, true);
      if (group_->rank() == 0) view.copy_(parameter.tensor);
      parameter.tensor.set_data(view);
      offset += whole_lines_of(view);
    }
  }
  group_->barrier().wait();  // the values of rank 0 are there
  spread_between_hosts();
  give_back_freed_memory();
  for (const NamedTensor& parameter : parameters_) accept_change(parameter.tensor);
}

// Each host gets the values in the memory of rank 0's host: as many of them at a time as one
// parameter has.
void OneCopy::spread_between_hosts() const {
  if (host_ == group_) return;
  for (const NamedTensor& parameter : parameters_) {
    const at::Tensor memory = parameter.tensor.variable_data();
    const at::Tensor values = at::empty_like(memory);
    if (group_->rank() == 0) values.copy_(memory);
    group_->broadcast(values, 0).wait();
    if (host_->rank() == 0 && group_->rank() != 0) memory.copy_(values);
  }
  host_->barrier().wait();
}

void OneCopy::check() const {
  const ErrorContext context = group_->context(owner_);
  for (const auto& [name, parameter] : parameters_) require_unchanged(parameter, name, context);
}

void OneCopy::change(const std::function<void()>& function) {
  check();
  const at::NoGradGuard no_grad;
  group_->barrier().wait();  // no rank reads the old values any more
  const at::Tensor changes = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kLong);
  auto* const counts = changes.data_ptr<std::int64_t>();
  const auto version = [&](std::size_t i) {
    return parameters_[i].tensor.unsafeGetTensorImpl()->version_counter().current_version();
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) counts[i] = -std::int64_t{version(i)};
  std::exception_ptr own_failure;
  const std::string failure = run_on_rank_0(function, own_failure);
  for (std::size_t i = 0; i < parameters_.size(); ++i) counts[i] += version(i);
  group_->broadcast(changes, 0).wait();
  spread_between_hosts();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // Autograd counts changes on each rank.
    for (std::int64_t n = 0; group_->rank() != 0 && n < counts[i]; ++n) {
      parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
    }
    accept_change(parameters_[i].tensor);
  }
  if (own_failure) std::rethrow_exception(own_failure);
  if (!failure.empty()) rethrow_failure_of_rank_0(failure, group_->context(owner_));
}

// Returns the packed error of the function; empty if it has returned. The caller throws it when all
// ranks know what the function has changed until then: otherwise the next check would complain of
// these changes.
std::string OneCopy::run_on_rank_0(const std::function<void()>& function,
                                   std::exception_ptr& own_failure) {
  try {
    return text_of_rank_0(*group_, [&] {
      try {
        function();
        return std::string();
      } catch (const std::exception& error) {
        own_failure = std::current_exception();
        return pack_error(error);
      }
    });
  } catch (...) {
    // It may have broken the group, and says why.
    if (own_failure) std::rethrow_exception(own_failure);
    throw;
  }
}

}  // namespace lockstep
