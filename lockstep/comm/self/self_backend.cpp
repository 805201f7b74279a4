// SPDX-License-Identifier: BSD-3-Clause
// Copies and scales the tensors of a group's only rank.
#include <mutex>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/ordinary_tensor.h"

namespace lockstep {
namespace {

// Half types are scaled in float and rounded once, as on the other backends. ATen would round the
// factor first.
void scale(const at::Tensor& tensor, double factor) {
  if (factor == 1) return;
  const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  if (half) {
    tensor.copy_(tensor.to(at::kFloat).mul_(factor));
  } else {
    tensor.mul_(factor);
  }
}

class SelfBackend final : public Backend {
 public:
  SelfBackend(int rank, GroupOptions options) : rank_(rank), options_(std::move(options)) {}

  std::string_view name() const override { return "self"; }

  // A collective without inputs works on its outputs in place. There is no other rank for a send or
  // recv.
  Work start(const CollectiveArgs& args) override {
    check_not_aborted(args.call.collective);
    const at::NoGradGuard no_grad;
    if (!args.inputs.empty() && !args.outputs.empty()) {
      args.outputs[0].copy_(args.inputs[0].reshape(args.outputs[0].sizes()));
    }
    for (const at::Tensor& output : args.outputs) scale(output, args.call.scale);
    return Work();
  }

  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    check_not_aborted(Collective::empty);
    return ordinary_tensor(sizes, options, 1);
  }

  at::Tensor common_memory(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return empty(sizes, options).zero_();
  }

  std::shared_ptr<Backend> split(const std::string&, Membership membership) override {
    return make_self_backend(membership, options_);
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_) abort_reason_ = reason;
  }
  void leave_failing(const std::string&) override {}  // it has no peers

 private:
  void check_not_aborted(Collective collective) {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_) return;
    throw PeerLost(
        ErrorDetails{.cause = fmt::format("this rank ended the group: {}", *abort_reason_),
                     .peer = rank_,
                     .contexts = {{.component = "self",
                                   .operation = std::string(lockstep::name(collective)),
                                   .rank = rank_,
                                   .size = 1}}});
  }

  const int rank_;
  const GroupOptions options_;
  std::mutex mutex_;
  std::optional<std::string> abort_reason_;
};

}  // namespace

std::shared_ptr<Backend> make_self_backend(const Membership& membership,
                                           const GroupOptions& options) {
  return std::make_shared<SelfBackend>(membership.rank, options);
}

}  // namespace lockstep
