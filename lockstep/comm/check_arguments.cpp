// SPDX-License-Identifier: BSD-3-Clause
// Checks arguments before a call starts, on this rank alone: after an error the group stays usable.
#include "lockstep/comm/check_arguments.h"

#include <algorithm>
#include <cmath>

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/kernels/reduce.h"

namespace lockstep {
namespace {

bool can_hold_elements(at::Device device) {
  if (device.is_cpu()) return true;
  if (device.type() == at::kMeta) return false;
  return std::max<int>(device.index(), 0) < device_count(device.type());
}

}  // namespace

ErrorContext ArgumentChecks::context() const {
  return {.component = std::string(backend_.name()),
          .operation = std::string(operation_),
          .rank = rank(),
          .size = size()};
}

void ArgumentChecks::refuse(const std::string& cause, const std::string& remedy) const {
  throw UsageError(context(), cause, remedy);
}

void ArgumentChecks::new_tensor(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  auto bytes = static_cast<std::int64_t>(options.dtype().itemsize());
  bool countable = true;
  for (const std::int64_t size : sizes) {
    if (size < 0) refuse(fmt::format("a size is {}", size), "sizes are 0 or more");
    countable &= size == 0 || !__builtin_mul_overflow(bytes, size, &bytes);
  }
  if (!countable) {
    refuse(fmt::format("[{}] {} elements exceed the address space", fmt::join(sizes, ", "),
                       c10::toString(c10::typeMetaToScalarType(options.dtype()))),
           "use smaller sizes");
  }
  if (!can_hold_elements(options.device())) {
    refuse(
        fmt::format("there is no device {} that could hold a tensor here", options.device().str()),
        fmt::format("omit the device to use the group's, {}", device_.str()));
  }
}

void ArgumentChecks::tensors(at::TensorList tensors) const {
  if (tensors.empty()) refuse("the list of tensors is empty", "give at least one");
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) refuse("a tensor is undefined", "make one before the call");
    if (tensor.layout() != at::kStrided) {
      refuse("a tensor is sparse", "only dense ones can be sent: call to_dense() first");
    }
    if (tensor.is_meta()) {
      refuse("a tensor is on the device meta and has no elements",
             "make it on a device that holds them");
    }
  }
}

void ArgumentChecks::outputs(at::TensorList tensors) const {
  this->tensors(tensors);
  for (const auto& tensor : tensors) {
    if (tensor.is_contiguous() || at::has_internal_overlap(tensor) != at::MemOverlap::Yes) continue;
    refuse(
        "a tensor that is written to is expanded: several of its elements share one place in "
        "memory",
        "call clone() first");
  }
}

void ArgumentChecks::reducible(const at::Tensor& tensor, AllReduceOptions options) const {
  const auto type = tensor.scalar_type();
  if (at::isComplexType(type) && !can_reduce(type, options.op)) {
    refuse(fmt::format("tensors of type {} have no {}: complex numbers of 64 and 128 bits have a "
                       "sum and a mean",
                       c10::toString(type), name(options.op)),
           "gather the ranks' tensors to combine them otherwise, or reduce "
           "at::view_as_real(tensor), whose real and imaginary parts are separate numbers");
  }
  if (!can_reduce(type, options.op)) {
    refuse(fmt::format("tensors of type {} cannot be reduced", c10::toString(type)));
  }
  const bool scaled = options.op == ReduceOp::mean || options.scale != 1;
  if (scaled && !at::isFloatingType(type) && !at::isComplexType(type)) {
    refuse(fmt::format("a mean or a scale needs a floating type, not {}", c10::toString(type)),
           "take the sum");
  }
  if (std::isnan(options.scale)) refuse("the scale is not a number");
  if (options.scale != 1 && options.op != ReduceOp::sum && options.op != ReduceOp::mean) {
    refuse(fmt::format("a scale requires sum or mean, not {}", name(options.op)));
  }
}

void ArgumentChecks::contiguous(const at::Tensor& output) const {
  if (output.is_contiguous()) return;
  refuse("the output is not contiguous", "make it with at::empty(sizes)");
}

void ArgumentChecks::root(int root) const {
  if (root >= 0 && root < size()) return;
  refuse(fmt::format("root {} is not a rank of this group", root),
         fmt::format("give 0 to {}", size() - 1));
}

void ArgumentChecks::one_each(at::TensorList tensors, const at::Tensor& like) const {
  if (static_cast<int>(tensors.size()) != size()) {
    refuse(fmt::format("{} tensors were given for {} ranks", tensors.size(), size()),
           "give one for each");
  }
  for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
    const auto& tensor = tensors[rank];
    if (tensor.numel() != like.numel() || tensor.scalar_type() != like.scalar_type()) {
      refuse(fmt::format("the tensor for rank {} has {} elements of {}, but this rank's has {} of "
                         "{}",
                         rank, tensor.numel(), c10::toString(tensor.scalar_type()), like.numel(),
                         c10::toString(like.scalar_type())),
             "they must match");
    }
  }
}

void ArgumentChecks::parts(const at::Tensor& all, const at::Tensor& part) const {
  if (all.scalar_type() == part.scalar_type() && all.numel() == size() * part.numel()) return;
  refuse(fmt::format("the tensor of all ranks has {} elements of {}, but {} ranks have {} of {} "
                     "each",
                     all.numel(), c10::toString(all.scalar_type()), size(), part.numel(),
                     c10::toString(part.scalar_type())),
         fmt::format("give it {} elements of that type", size() * part.numel()));
}

void ArgumentChecks::none(std::string_view list, at::TensorList tensors, int root) const {
  if (tensors.empty()) return;
  refuse(
      fmt::format("{} {} were given, but only root, rank {}, has any", tensors.size(), list, root),
      "pass an empty list on the other ranks");
}

void ArgumentChecks::exchange(at::TensorList outputs, at::TensorList inputs) const {
  const auto ranks = static_cast<std::size_t>(size());
  if (inputs.size() != ranks || outputs.size() != ranks) {
    refuse(fmt::format("{} outputs and {} inputs were given for {} ranks", outputs.size(),
                       inputs.size(), ranks),
           "give one output and one input per rank");
  }
  const auto& from = inputs[static_cast<std::size_t>(rank())];
  const auto& to = outputs[static_cast<std::size_t>(rank())];
  if (from.numel() != to.numel() || from.scalar_type() != to.scalar_type()) {
    refuse(fmt::format("this rank's own input has {} elements of {}, and its output {} of {}",
                       from.numel(), c10::toString(from.scalar_type()), to.numel(),
                       c10::toString(to.scalar_type())),
           "they must match");
  }
}

void ArgumentChecks::peer(int peer) const {
  if (peer >= 0 && peer < size() && peer != rank()) return;
  refuse(fmt::format("rank {} is not a peer", peer),
         fmt::format("name another rank from 0 to {}", size() - 1));
}

void ArgumentChecks::pieces(const at::Tensor& tensor, const std::vector<Piece>& pieces) const {
  if (tensor.dim() != 1) {
    refuse(fmt::format("pieces require a tensor of one dimension, not of {}", tensor.dim()),
           "call view(-1)");
  }
  std::int64_t end = 0;
  for (const Piece& piece : pieces) {
    tensors(piece.values);
    const ElementRange range = piece.range();
    if (range.begin < end || range.end() > tensor.numel()) {
      refuse(
          fmt::format("a piece of {} elements from {} on lies outside of the tensor, which has "
                      "{}, or overlaps another",
                      range.count, range.begin, tensor.numel()));
    }
    if (piece.values.scalar_type() != tensor.scalar_type() || !piece.values.is_contiguous()) {
      refuse(fmt::format("a piece is of {}{}, the tensor of {}",
                         c10::toString(piece.values.scalar_type()),
                         piece.values.is_contiguous() ? "" : " and not contiguous",
                         c10::toString(tensor.scalar_type())),
             "pieces must be contiguous and of the tensor's type");
    }
    end = range.end();
  }
}

}  // namespace lockstep
