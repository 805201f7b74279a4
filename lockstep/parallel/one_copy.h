// SPDX-License-Identifier: BSD-3-Clause
// Parameters that the ranks of a host share as one copy, in memory that all of them map. Where
// every rank has a copy, all ranks make the same change; here, that would apply the change once for
// each rank. So a parameter may only change where the library knows of it. Any other change that is
// found is an error that names the parameter.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Collective. The ranks that share memory with this one: the group itself, unless it knows several
// hosts.
std::shared_ptr<ProcessGroup> ranks_of_host(const std::shared_ptr<ProcessGroup>& group);

// Whether the tensor lies in such memory.
bool has_one_copy(const at::Tensor& parameter);

// For a parameter that was moved into such memory. UsageError in the caller's context, which names
// the parameter, if it has been moved elsewhere, or if it has changed since accept_change(): on
// this rank, as autograd counts changes, or in its first values, on any rank.
void require_unchanged(const at::Tensor& parameter, const std::string& name,
                       const ErrorContext& caller);

// Returns a tensor in memory that all ranks map, which it keeps: from this byte on, with the sizes
// and the type of `like`, and with its strides unless they leave gaps.
at::Tensor common_tensor(const at::Tensor& like, const at::Tensor& memory, std::int64_t offset);

// Records the parameter's present version and first values, which require_unchanged() compares.
// Call it when no rank changes the parameter any more: all have made the change together, or store
// the same values. Does nothing for a parameter without such a copy.
void accept_change(const at::Tensor& parameter);

// Gives a tensor in such memory, if no view of another, memory of this rank, with its values: no
// other rank changes it any more. Does nothing for others.
void leave_one_copy(const at::Tensor& parameter);

// The parameters of a model.
class OneCopy {
 public:
  // Collective. The parameters get the values of rank 0, and move into the common memory of their
  // host; the tensors stay the same objects. A parameter with gaps between its elements becomes
  // contiguous. The parameters are distinct and alike on every rank. UsageError of the component
  // `owner`, on every rank, if the processes of a host share no memory in this group, if a
  // parameter is on another device than the CPU, or if two parameters are different tensors in the
  // same memory. BackendError if there is not enough memory.
  OneCopy(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
          const char* owner);

  // The ranks of this host: the group itself, unless it knows several hosts.
  const std::shared_ptr<ProcessGroup>& host() const { return host_; }

  // require_unchanged() for each of them.
  void check() const;
  // Collective. Runs the function on rank 0, while no rank computes, and gives other hosts the new
  // values. An error reaches every rank, and what the function had changed by then stays.
  void change(const std::function<void()>& function);

 private:
  void move(const at::Tensor& memory);
  void spread_between_hosts() const;
  std::string run_on_rank_0(const std::function<void()>& function, std::exception_ptr& own_failure);

  std::vector<NamedTensor> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<ProcessGroup> host_;
  const char* owner_;
};

}  // namespace lockstep
