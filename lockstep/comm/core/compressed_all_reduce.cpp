// SPDX-License-Identifier: BSD-3-Clause
// Rounds the elements, waits for their sum, and widens it.
#include "lockstep/comm/core/compressed_all_reduce.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep {
namespace {

class CompressedAllReduce final : public Operation {
 public:
  CompressedAllReduce(at::Device device, std::chrono::milliseconds timeout)
      : timeout_(timeout), rounded_(device) {}

  at::Tensor rounded(const at::Tensor& original, at::ScalarType type) {
    return rounded_.output_as(original, type);
  }
  void wait_for(Work sum) { sum_ = std::move(sum); }

  bool finished() const override { return rounded_.empty(); }
  bool poll() override {
    if (!sum_.poll()) return false;
    rounded_.copy_back();
    return true;
  }
  void wait(const Deadline& deadline) override {
    sum_.wait(deadline);
    rounded_.copy_back();
  }
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  std::chrono::milliseconds timeout_;
  DeviceCopies rounded_;
  Work sum_;  // destroyed first, since it uses the copy
};

}  // namespace

bool asks_for_compression(const CollectiveArgs& args) {
  if (args.wire_type == at::ScalarType::Undefined) return false;
  const at::ScalarType type = args.outputs[0].scalar_type();
  return type == at::kFloat || type == at::kDouble;
}

Work start_compressed(const CollectiveArgs& args, int ranks, std::chrono::milliseconds timeout,
                      const std::function<Work(const CollectiveArgs&)>& start) {
  const at::Tensor& tensor = args.outputs[0];
  Call whole = args.call_of_output(0);
  whole.type = args.wire_type;
  if (args.part_of != nullptr) whole = *args.part_of;
  const double scale = scale_over(ranks, args.call.op, args.call.scale);
  if (scale != 1) {
    const at::NoGradGuard no_grad;
    tensor.detach().mul_(scale);
  }
  auto operation = std::make_shared<CompressedAllReduce>(tensor.device(), timeout);
  const at::Tensor rounded = operation->rounded(tensor, args.wire_type);
  operation->wait_for(start({.call = {.collective = Collective::all_reduce, .op = ReduceOp::sum},
                             .outputs = rounded,
                             .part_of = &whole}));
  return Work(std::move(operation));
}

}  // namespace lockstep
