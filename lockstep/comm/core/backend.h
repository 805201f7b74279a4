// SPDX-License-Identifier: BSD-3-Clause
// The interface of backends, which carry out the calls of a process group. ProcessGroup checks
// arguments first, so a backend may rely on them: tensors are defined and dense, types and sizes
// match, the operation suits the type, and the root is a rank.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/types/group_options.h"
#include "lockstep/comm/types/work.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Thread-safe. The destructor leaves the group and does not throw.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // The name in messages: "shm", "gloo", ...
  virtual std::string_view name() const = 0;

  // Starts the call after those started before, without blocking. Throws the error that ended the
  // group, if one did.
  virtual Work start(const CollectiveArgs& args) = 0;

  // Uninitialized memory on the device that the options name. A blocking collective call. The ranks
  // agree whether all of them have the memory: BackendError on each if one does not.
  virtual at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
  // See ProcessGroup::own_share.
  virtual ElementRange own_share(const at::Tensor&) const { return {}; }
  // See ProcessGroup::symmetric_memory.
  virtual std::vector<std::byte*> symmetric_memory(const at::Tensor&) const { return {}; }

  // See ProcessGroup::common_memory.
  virtual at::Tensor common_memory(at::IntArrayRef, const at::TensorOptions&) { return {}; }
  // See ProcessGroup::hosts.
  virtual std::vector<std::vector<int>> hosts() const { return {}; }
  // See ProcessGroup::has_ended.
  virtual bool has_ended(int /*rank*/) const { return false; }

  // Joins the ranks of the membership, all of them ranks of this group. The name distinguishes the
  // new group from this group's other subgroups; its store already keeps their keys apart.
  // Blocking.
  virtual std::shared_ptr<Backend> split(const std::string& name, Membership membership) = 0;

  // Ends the group for every rank, with the reason.
  virtual void abort(const std::string& reason) = 0;
  // Like abort, but every rank throws a UsageError, since ranks made different calls.
  virtual void abort_for_mismatch(const std::string& reason) { abort(reason); }
  // Tells the peers that an exception ends this rank. Calls complete if this rank has done its
  // part.
  virtual void leave_failing(const std::string& reason) = 0;

  // Whether ranks compare each call before they use its result.
  virtual bool compares_calls() const { return true; }
};

}  // namespace lockstep
