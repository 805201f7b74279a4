// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/process_group.h"

#include <algorithm>
#include <cmath>

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "lockstep/collective/device_count.h"
#include "lockstep/collective/kernels/reduce.h"
#include "lockstep/collective/progress.h"
#include "lockstep/collective/ring_all_reduce.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

bool can_hold_elements(at::Device device) {
  if (device.is_cpu()) return true;
  if (device.type() == at::kMeta) return false;
  return std::max<int>(device.index(), 0) < device_count(device.type());
}

}  // namespace

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

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  for (const std::int64_t size : sizes) {
    if (size < 0) throw UsageError(where("empty") + fmt::format("a size is {}", size));
  }
  const at::Device wanted = options.has_device() ? options.device() : device();
  if (!can_hold_elements(wanted)) {
    throw UsageError(where("empty") +
                     fmt::format("there is no device {} that could hold a tensor here; leave the "
                                 "device away for the group's own, {}",
                                 wanted.str(), device().str()));
  }
  return make_empty(sizes, options.device(wanted));
}

void ProcessGroup::check(std::string_view operation, at::TensorList tensors) const {
  if (tensors.empty()) {
    throw UsageError(where(operation) + "the list of tensors is empty; give at least one");
  }
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) throw UsageError(where(operation) + "a tensor is undefined");
    if (tensor.layout() != at::kStrided) {
      throw UsageError(where(operation) +
                       "a tensor is sparse; only dense ones can be sent: call to_dense() first");
    }
    if (tensor.is_meta()) {
      throw UsageError(where(operation) +
                       "a tensor is on the device meta and has no elements; make it on a device "
                       "that holds them");
    }
  }
}

void ProcessGroup::check_outputs(std::string_view operation, at::TensorList tensors) const {
  check(operation, tensors);
  for (const auto& tensor : tensors) {
    if (tensor.is_contiguous() || at::has_internal_overlap(tensor) != at::MemOverlap::Yes) continue;
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
  if (std::isnan(options.scale)) throw UsageError(where(operation) + "the scale is not a number");
  if (options.scale != 1 && options.op != ReduceOp::sum && options.op != ReduceOp::mean) {
    throw UsageError(
        where(operation) +
        fmt::format("a scale goes with a sum or a mean, not with {}", name(options.op)));
  }
}

void ProcessGroup::check_root(std::string_view operation, int root) const {
  if (root >= 0 && root < size()) return;
  throw UsageError(where(operation) + fmt::format("root {} is no rank of this group", root));
}

Work ProcessGroup::all_reduce(at::TensorList tensors, AllReduceOptions options) {
  check_outputs("all_reduce", tensors);
  for (const auto& tensor : tensors) check("all_reduce", tensor, options);
  if (options.algorithm == Algorithm::ring && size() > 1) {
    ++calls_made_;
    return start_ring(tensors, options);
  }
  count_all_reduce(tensors);
  return start_all_reduce(tensors, options);
}

void ProcessGroup::count_all_reduce(at::TensorList tensors) {
  ++calls_made_;
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.nbytes();
  bytes_sent_ += 2 * static_cast<std::uint64_t>(size() - 1) * bytes / size();
}

Work ProcessGroup::all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                                     AllReduceOptions options) {
  if (pieces.empty()) return all_reduce(tensor, options);
  std::ranges::sort(pieces, {}, &Piece::begin);
  check_outputs("all_reduce", {tensor});
  check("all_reduce", tensor, options);
  check_pieces(tensor, pieces);
  if (options.algorithm == Algorithm::ring) {
    for (const Piece& piece : pieces) bring_in(tensor, piece);
    return all_reduce(tensor, options);
  }
  count_all_reduce(tensor);
  return start_all_reduce_pieces(tensor, std::move(pieces), options);
}

void ProcessGroup::check_pieces(const at::Tensor& tensor, const std::vector<Piece>& pieces) const {
  if (tensor.dim() != 1) {
    throw UsageError(where("all_reduce") + fmt::format("pieces go with a tensor of one dimension, "
                                                       "not of {}; call view(-1)",
                                                       tensor.dim()));
  }
  std::int64_t end = 0;
  for (const Piece& piece : pieces) {
    check("all_reduce", {piece.values});
    const ElementRange range = piece.range();
    if (range.begin < end || range.end() > tensor.numel()) {
      throw UsageError(where("all_reduce") +
                       fmt::format("a piece of {} elements from {} on lies outside of the tensor, "
                                   "which has {}, or overlaps another",
                                   range.count, range.begin, tensor.numel()));
    }
    if (piece.values.scalar_type() != tensor.scalar_type() || !piece.values.is_contiguous()) {
      throw UsageError(
          where("all_reduce") +
          fmt::format("a piece is of {}{}, the tensor of {}; pieces must be contiguous "
                      "and of the tensor's type",
                      c10::toString(piece.values.scalar_type()),
                      piece.values.is_contiguous() ? "" : " and not contiguous",
                      c10::toString(tensor.scalar_type())));
    }
    end = range.end();
  }
}

Work ProcessGroup::start_all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                                           AllReduceOptions options) {
  for (const Piece& piece : pieces) bring_in(tensor, piece);
  return start_all_reduce(tensor, options);
}

Work ProcessGroup::reduce(at::TensorList tensors, int root, AllReduceOptions options) {
  check_outputs("reduce", tensors);
  check_root("reduce", root);
  for (const auto& tensor : tensors) check("reduce", tensor, options);
  ++calls_made_;
  return start_reduce(tensors, root, options);
}

Work ProcessGroup::broadcast(at::TensorList tensors, int root) {
  check_outputs("broadcast", tensors);
  check_root("broadcast", root);
  ++calls_made_;
  return start_broadcast(tensors, root);
}

namespace {

// A list with one tensor a rank, each like this rank's own.
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

void check_empty(const std::string& where, std::string_view list,
                 const std::vector<at::Tensor>& tensors, int root) {
  if (tensors.empty()) return;
  throw UsageError(where + fmt::format("{} {} were given, but only root, rank {}, has any; pass an "
                                       "empty list on the other ranks",
                                       tensors.size(), list, root));
}

}  // namespace

Work ProcessGroup::all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input) {
  check("all_gather", {input});
  check_outputs("all_gather", outputs);
  check_one_each(where("all_gather"), outputs, input, size());
  ++calls_made_;
  return start_all_gather(std::move(outputs), input);
}

Work ProcessGroup::gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root) {
  check_root("gather", root);
  check("gather", {input});
  if (rank() == root) {
    check_outputs("gather", outputs);
    check_one_each(where("gather"), outputs, input, size());
  } else {
    check_empty(where("gather"), "outputs", outputs, root);
  }
  ++calls_made_;
  return start_gather(std::move(outputs), input, root);
}

Work ProcessGroup::scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root) {
  check_root("scatter", root);
  check_outputs("scatter", {output});
  if (rank() == root) {
    check("scatter", inputs);
    check_one_each(where("scatter"), inputs, output, size());
  } else {
    check_empty(where("scatter"), "inputs", inputs, root);
  }
  ++calls_made_;
  return start_scatter(output, std::move(inputs), root);
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                                  AllReduceOptions options) {
  check_outputs("reduce_scatter", {output});
  check("reduce_scatter", inputs);
  check_one_each(where("reduce_scatter"), inputs, output, size());
  check("reduce_scatter", output, options);
  ++calls_made_;
  return start_reduce_scatter(output, std::move(inputs), options);
}

Work ProcessGroup::all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) {
  check("all_to_all", inputs);
  check_outputs("all_to_all", outputs);
  const auto ranks = static_cast<std::size_t>(size());
  if (inputs.size() != ranks || outputs.size() != ranks) {
    throw UsageError(where("all_to_all") +
                     fmt::format("{} outputs and {} inputs were given for {} ranks; give one of "
                                 "each for each",
                                 outputs.size(), inputs.size(), ranks));
  }
  const auto& from = inputs[static_cast<std::size_t>(rank())];
  const auto& to = outputs[static_cast<std::size_t>(rank())];
  if (from.numel() != to.numel() || from.scalar_type() != to.scalar_type()) {
    throw UsageError(
        where("all_to_all") +
        fmt::format("this rank's own input has {} elements of {}, and its output {} of {}; they "
                    "must be alike",
                    from.numel(), c10::toString(from.scalar_type()), to.numel(),
                    c10::toString(to.scalar_type())));
  }
  ++calls_made_;
  return start_all_to_all(std::move(outputs), std::move(inputs));
}

void ProcessGroup::check_peer(std::string_view operation, int peer) const {
  if (peer >= 0 && peer < size() && peer != rank()) return;
  throw UsageError(where(operation) +
                   fmt::format("{} is no other rank of this group; name one from 0 to {}, but not "
                               "this one",
                               peer, size() - 1));
}

Work ProcessGroup::send(const at::Tensor& tensor, int to) {
  check("send", {tensor});
  check_peer("send", to);
  bytes_sent_ += static_cast<std::uint64_t>(tensor.numel() * tensor.element_size());
  ++calls_made_;
  return start_send(tensor, to, Lane::user);
}

Work ProcessGroup::recv(const at::Tensor& tensor, int from) {
  check_outputs("recv", {tensor});
  check_peer("recv", from);
  ++calls_made_;
  return start_recv(tensor, from, Lane::user);
}

Work ProcessGroup::barrier() {
  ++calls_made_;
  return start_meeting({.collective = Collective::barrier});
}

// One ring at a time, or the messages of two would mix. The call beside it shows whether every rank
// wants the same; the messages would not.
Work ProcessGroup::start_ring(at::TensorList tensors, AllReduceOptions options) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  // The ring may outlive its caller's group.
  const std::shared_ptr<ProcessGroup> group = shared_from_this();
  const RingNeighbours neighbours{.send =
                                      [group, next](const at::Tensor& chunk) {
                                        group->bytes_sent_ += chunk.nbytes();
                                        return group->start_send(chunk, next, Lane::ring);
                                      },
                                  .receive =
                                      [group, previous](const at::Tensor& chunk) {
                                        return group->start_recv(chunk, previous, Lane::ring);
                                      },
                                  .rank = rank(),
                                  .size = size(),
                                  .timeout = timeout()};
  Call call{.collective = Collective::all_reduce,
            .op = options.op,
            .type = tensors.front().scalar_type(),
            .algorithm = Algorithm::ring,
            .scale = options.scale,
            .tensors = static_cast<std::int32_t>(tensors.size())};
  for (const auto& tensor : tensors) call.elements += tensor.numel();
  const std::lock_guard lock(ring_mutex_);
  auto ring = std::make_shared<RingAllReduce>(tensors.vec(), options, neighbours,
                                              start_meeting(call), last_ring_.lock());
  last_ring_ = ring;
  share_progress(ring);
  ring->try_advance();
  return Work(std::move(ring));
}

}  // namespace lockstep
