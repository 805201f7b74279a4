// SPDX-License-Identifier: BSD-3-Clause
// What carries out the calls of a process group. ProcessGroup checks arguments; a backend may rely
// on it: tensors are defined and dense, their types and sizes go together, the operation suits the
// type, the root is a rank.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/core/work.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// How ranks are joined into a group, and how long its waits last.
struct GroupOptions {
  // Until when a collective waits for its peers, unless Work::wait says otherwise.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Where this rank's tensors live; group->device() returns it.
  at::Device device = at::kCPU;
  // Why this backend was chosen, for those who ask.
  std::string why = "asked for";
};

// Thread-safe. The destructor leaves the group; it does not throw.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // "shm", "gloo", ...: what messages call it.
  virtual std::string_view name() const = 0;

  // Starts the call behind those started before, and does not block. Throws what has ended the
  // group, if something has.
  virtual Work start(const CollectiveArgs& args) = 0;

  // Uninitialised memory on the device that the options name. A collective call, blocking. Ranks
  // agree whether all of them have it: BackendError on each if one has not.
  virtual at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
  // ProcessGroup::own_share.
  virtual ElementRange own_share(const at::Tensor&) const { return {}; }

  // Joins the ranks of the membership, all of them of this group. The name tells the new group from
  // this one's others. Blocking.
  virtual std::shared_ptr<Backend> split(const std::string& name, Membership membership) = 0;

  // Ends the group for every rank, with the reason.
  virtual void abort(const std::string& reason) = 0;
  // The same with a UsageError, for ranks that have made different calls.
  virtual void abort_for_mismatch(const std::string& reason) { abort(reason); }
  // Tells the peers that an exception ends this rank. Calls for which it has done its part
  // complete.
  virtual void leave_failing(const std::string& reason) = 0;

  // Whether ranks compare each call before they use its result.
  virtual bool compares_calls() const { return true; }
};

}  // namespace lockstep
