// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/process_group.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "lockstep/collective/kernels/reduce.h"
#include "lockstep/core/error.h"

namespace lockstep {

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

std::string ProcessGroup::where(std::string_view operation) const {
  return fmt::format("[{}] {}, rank {} of {}: ", backend(), operation, rank(), size());
}

void ProcessGroup::check(std::string_view operation, const std::vector<at::Tensor>& tensors) const {
  if (tensors.empty()) {
    throw UsageError(where(operation) + "the list of tensors is empty; give at least one");
  }
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) throw UsageError(where(operation) + "a tensor is undefined");
    if (tensor.layout() != at::kStrided) {
      throw UsageError(where(operation) +
                       "a tensor is sparse; only dense ones can be sent: call to_dense() first");
    }
  }
}

void ProcessGroup::check_outputs(std::string_view operation,
                                 const std::vector<at::Tensor>& tensors) const {
  check(operation, tensors);
  for (const auto& tensor : tensors) {
    if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) continue;
    throw UsageError(where(operation) +
                     "a tensor that is written to is expanded: several of its elements share one "
                     "place in memory; call clone() first");
  }
}

void ProcessGroup::check(std::string_view operation, const at::Tensor& tensor,
                         AllReduceOptions options) const {
  const auto type = tensor.scalar_type();
  if (!can_reduce(type)) {
    throw UsageError(where(operation) +
                     fmt::format("tensors of type {} cannot be reduced", c10::toString(type)));
  }
  const bool scaled = options.op == ReduceOp::mean || options.scale != 1;
  if (scaled && !at::isFloatingType(type)) {
    throw UsageError(where(operation) +
                     fmt::format("a mean or a scale needs a floating type, not {}; take the sum",
                                 c10::toString(type)));
  }
  if (options.scale != 1 && options.op != ReduceOp::sum && options.op != ReduceOp::mean) {
    throw UsageError(
        where(operation) +
        fmt::format("a scale goes with a sum or a mean, not with {}", name(options.op)));
  }
}

Work ProcessGroup::all_reduce(std::vector<at::Tensor> tensors, AllReduceOptions options) {
  check_outputs("all_reduce", tensors);
  for (const auto& tensor : tensors) check("all_reduce", tensor, options);
  return start_all_reduce(std::move(tensors), options);
}

Work ProcessGroup::all_reduce(const at::Tensor& tensor, AllReduceOptions options) {
  return all_reduce(std::vector{tensor}, options);
}

Work ProcessGroup::broadcast(std::vector<at::Tensor> tensors, int root) {
  check_outputs("broadcast", tensors);
  if (root < 0 || root >= size()) {
    throw UsageError(where("broadcast") + fmt::format("root {} is no rank of this group", root));
  }
  return start_broadcast(std::move(tensors), root);
}

Work ProcessGroup::broadcast(const at::Tensor& tensor, int root) {
  return broadcast(std::vector{tensor}, root);
}

namespace {

// all_gather's outputs and reduce_scatter's inputs: one tensor a rank, each like the other side.
void check_one_each(const std::string& where, const std::vector<at::Tensor>& tensors,
                    const at::Tensor& like, int ranks) {
  if (static_cast<int>(tensors.size()) != ranks) {
    throw UsageError(where + fmt::format("{} tensors were given for {} ranks; give one for each",
                                         tensors.size(), ranks));
  }
  for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
    const auto& tensor = tensors[rank];
    if (tensor.numel() != like.numel() || tensor.scalar_type() != like.scalar_type()) {
      throw UsageError(
          where + fmt::format("the tensor for rank {} has {} elements of {}, but this rank's has "
                              "{} of {}; they must be alike",
                              rank, tensor.numel(), c10::toString(tensor.scalar_type()),
                              like.numel(), c10::toString(like.scalar_type())));
    }
  }
}

}  // namespace

Work ProcessGroup::all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input) {
  check("all_gather", {input});
  check_outputs("all_gather", outputs);
  check_one_each(where("all_gather"), outputs, input, size());
  return start_all_gather(std::move(outputs), input);
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                                  AllReduceOptions options) {
  check_outputs("reduce_scatter", {output});
  check("reduce_scatter", inputs);
  check_one_each(where("reduce_scatter"), inputs, output, size());
  check("reduce_scatter", output, options);
  return start_reduce_scatter(output, std::move(inputs), options);
}

}  // namespace lockstep
