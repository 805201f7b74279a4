// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/self/self_group.h"

#include <mutex>
#include <optional>

#include <ATen/core/grad_mode.h>

#include "lockstep/comm/core/ordinary_tensor.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

class SelfGroup final : public ProcessGroup {
 public:
  SelfGroup(Membership membership, GroupOptions options)
      : ProcessGroup(std::move(membership), options) {}

  std::string_view backend() const override { return "self"; }

  at::Tensor make_empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    check_not_aborted("empty");
    return ordinary_tensor(sizes, options, 1);
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_) abort_reason_ = reason;
  }

 private:
  void leave_failing(const std::string&) override {}  // it has no peers

  Work start_barrier(const Call& call) override {
    check_not_aborted(name(call.collective));
    return Work();
  }

  Work start_all_reduce(at::TensorList tensors, AllReduceOptions options) override {
    check_not_aborted("all_reduce");
    for (const auto& tensor : tensors) scale(tensor, options.scale);
    return Work();
  }

  Work start_reduce(at::TensorList tensors, int, AllReduceOptions options) override {
    check_not_aborted("reduce");
    for (const auto& tensor : tensors) scale(tensor, options.scale);
    return Work();
  }

  Work start_broadcast(at::TensorList, int) override {
    check_not_aborted("broadcast");
    return Work();
  }

  Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    check_not_aborted("all_gather");
    copy(outputs[0], input);
    return Work();
  }

  Work start_gather(std::vector<at::Tensor> outputs, at::Tensor input, int) override {
    check_not_aborted("gather");
    copy(outputs[0], input);
    return Work();
  }

  Work start_scatter(at::Tensor output, std::vector<at::Tensor> inputs, int) override {
    check_not_aborted("scatter");
    copy(output, inputs[0]);
    return Work();
  }

  Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                            AllReduceOptions options) override {
    check_not_aborted("reduce_scatter");
    copy(output, inputs[0]);
    scale(output, options.scale);
    return Work();
  }

  static void copy(at::Tensor& to, const at::Tensor& from) {
    const at::NoGradGuard no_grad;
    to.copy_(from.reshape(to.sizes()));
  }

  Work start_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    check_not_aborted("all_to_all");
    copy(outputs[0], inputs[0]);
    return Work();
  }

  // There is no other rank to name.
  Work start_send(at::Tensor, int, Tag) override { return Work(); }
  Work start_recv(at::Tensor, int, Tag) override { return Work(); }

  std::shared_ptr<ProcessGroup> make_subgroup(const std::string&, Membership membership) override {
    return make_self_group(std::move(membership), {.timeout = timeout(), .device = device()});
  }

  // Half types are scaled in float and rounded once, as the other backends do: multiplied by a
  // number, ATen rounds the number first.
  static void scale(const at::Tensor& tensor, double factor) {
    if (factor == 1) return;
    const at::NoGradGuard no_grad;
    const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
    if (half) {
      tensor.copy_(tensor.to(at::kFloat).mul_(factor));
    } else {
      tensor.mul_(factor);
    }
  }

  void check_not_aborted(std::string_view operation) {
    const std::lock_guard lock(mutex_);
    if (abort_reason_) {
      throw PeerLost(rank(), where(operation) + "the group was aborted: " + *abort_reason_);
    }
  }

  std::mutex mutex_;
  std::optional<std::string> abort_reason_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_self_group(Membership membership, GroupOptions options) {
  return std::make_shared<SelfGroup>(std::move(membership), options);
}

}  // namespace lockstep
