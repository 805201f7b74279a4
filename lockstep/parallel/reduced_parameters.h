// SPDX-License-Identifier: BSD-3-Clause
// The parameters of a reducer: their hooks, which tell what autograd does with them, and what the
// backward that runs has accumulated for each.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/parallel/backward_hooks.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// A parameter whose gradient is reduced.
struct ReducedParameter {
  ReducedParameter(const NamedTensor& named, int number, GradientListener& listener);

  // Whether a backward that accumulates no more often than an earlier one has its whole gradient. A
  // parameter that no complete backward used is never ready.
  bool is_ready() const { return whole_count > 0 && count >= whole_count; }
  // Before the reduction: puts the gradient into place `index` of its bucket, zeros if there is
  // none. Only if this rank used the parameter does .grad become the view of the bucket.
  void put_into(Bucket& bucket, int index);
  // After the reduction, for the next backward. `mean` is the view of the bucket, which a parameter
  // that only other ranks used gets as .grad. If no rank used the parameter, the view gets the bits
  // back that it had.
  void settle(const at::Tensor& mean, bool used_by_any_rank);

  int number;
  std::string name;
  at::Tensor tensor;
  GradientHooks hooks;
  std::vector<GradientHooks> earlier_hooks{};  // on accumulators that the tensor had before
  // How often its gradient has been accumulated in this backward, and how often in a complete one;
  // nested backwards accumulate several times.
  int count = 0;
  int whole_count = 0;
  bool used = false;  // on this rank since the last reduction, even under no_sync()
  bool unused_everywhere = false;
  at::Tensor kept{};  // the bits of the gradient, in case no rank used the parameter
};

// Parameters are counted from 0, in the order of the constructor's list.
class ReducedParameters {
 public:
  // The parameters require gradients. The listener outlives this object.
  ReducedParameters(const std::vector<NamedTensor>& parameters, GradientListener& listener);

  // Hooks the parameters again whose data was replaced, as torch::load does.
  void renew_hooks();
  // Within a backward: whether it accumulates none of the gradients. torch::autograd::grad() for
  // other tensors also enters through the outputs, and leaves nothing to reduce.
  bool accumulate_nothing() const;
  // Names of the parameters that no rank used between the last two reductions.
  std::vector<std::string> unused() const;

  bool empty() const { return parameters_.empty(); }
  std::size_t size() const { return parameters_.size(); }
  ReducedParameter& operator[](int number) { return parameters_[static_cast<std::size_t>(number)]; }
  std::vector<ReducedParameter>::iterator begin() { return parameters_.begin(); }
  std::vector<ReducedParameter>::iterator end() { return parameters_.end(); }
  std::vector<ReducedParameter>::const_iterator begin() const { return parameters_.begin(); }
  std::vector<ReducedParameter>::const_iterator end() const { return parameters_.end(); }

 private:
  GradientListener& listener_;
  std::vector<ReducedParameter> parameters_;
};

// Listens at the outputs of forwards under no_sync(), and knows while one of their backwards runs.
class UnsynchronizedBackward final : public BackwardListener,
                                     public std::enable_shared_from_this<UnsynchronizedBackward> {
 public:
  // Graphs may keep this object longer than the parameters live.
  explicit UnsynchronizedBackward(std::weak_ptr<const ReducedParameters> parameters)
      : parameters_(std::move(parameters)) {}

  bool is_running() const { return running_; }

  void backward_entered() override;

 private:
  void ended() noexcept { running_ = false; }

  std::weak_ptr<const ReducedParameters> parameters_;
  std::atomic<bool> running_ = false;
};

}  // namespace lockstep
