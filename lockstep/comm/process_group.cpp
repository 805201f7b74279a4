// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/process_group.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/comm/core/device_copies.h"
#include "lockstep/comm/core/progress.h"
#include "lockstep/comm/core/ring_all_reduce.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/rendezvous/losses.h"

namespace lockstep {

namespace {

// First line of the exception that is being handled. One that still unwinds cannot be inspected.
std::string handled_exception() {
  if (!std::current_exception()) return "an exception ended it; its own output tells which";
  try {
    throw;
  } catch (const std::exception& error) {
    return "an exception ended it: " + first_line(error);
  } catch (...) {
    return "an exception ended it that is no std::exception";
  }
}

Call of(Collective collective, const at::Tensor& tensor, int root = -1) {
  return {.collective = collective,
          .type = tensor.scalar_type(),
          .root = root,
          .elements = tensor.numel()};
}

Call reducing(Collective collective, const AllReduceOptions& options, int root = -1) {
  return {.collective = collective, .op = options.op, .root = root, .scale = options.scale};
}

}  // namespace

ProcessGroup::ProcessGroup(Membership membership, GroupOptions options,
                           std::shared_ptr<Backend> backend)
    : membership_(std::move(membership)),
      options_(std::move(options)),
      backend_(std::move(backend)),
      owner_(::getpid()),
      exceptions_in_flight_(std::uncaught_exceptions()),
      in_handler_(std::current_exception() != nullptr) {}

ProcessGroup::~ProcessGroup() {
  leave_if_failing();
}

// Peers must not take the end of a group by an exception for an ordinary farewell.
void ProcessGroup::leave_if_failing() noexcept try {
  const bool unwinding = std::uncaught_exceptions() > exceptions_in_flight_;
  const bool handling = std::current_exception() != nullptr && !in_handler_;
  if ((!unwinding && !handling) || ::getpid() != owner_) return;
  const GroupLosses losses(membership_);
  std::string reason = handled_exception();
  if (const auto loss = losses.loss()) {
    reason += fmt::format(", after it had lost rank {} of the job ({})", loss->rank, loss->text);
  } else {
    tell_torchrun(reason);
  }
  backend_->leave_failing(reason);
  losses.let_lost_rank_end_first();
} catch (...) {
  // The peers see a farewell.
}

std::string ProcessGroup::where(std::string_view operation) const {
  return fmt::format("[{}] {}, rank {} of {}: ", backend(), operation, rank(), size());
}

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::TensorOptions placed =
      options.device(options.has_device() ? options.device() : device());
  check_new_tensor(sizes, placed);
  return backend_->empty(sizes, placed);
}

Work ProcessGroup::start(const CollectiveArgs& args) {
  ++calls_made_;
  return backend_->start(args);
}

Work ProcessGroup::start_all_reduce(at::TensorList tensors, AllReduceOptions options,
                                    std::span<const Piece> pieces) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.nbytes();
  bytes_sent_ += 2 * static_cast<std::uint64_t>(size() - 1) * bytes / size();
  return start({.call = reducing(Collective::all_reduce, options),
                .outputs = tensors,
                .pieces = pieces});
}

Work ProcessGroup::all_reduce(at::TensorList tensors, AllReduceOptions options) {
  check_outputs("all_reduce", tensors);
  for (const auto& tensor : tensors) check("all_reduce", tensor, options);
  if (options.algorithm == Algorithm::ring && size() > 1) {
    return start_ring(tensors, reducing(Collective::all_reduce, options));
  }
  return start_all_reduce(tensors, options);
}

Work ProcessGroup::all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                                     AllReduceOptions options) {
  if (pieces.empty()) return all_reduce(tensor, options);
  std::ranges::sort(pieces, {}, &Piece::begin);
  check_outputs("all_reduce", {tensor});
  check("all_reduce", tensor, options);
  check_pieces(tensor, pieces);
  const ElementRange share =
      options.algorithm == Algorithm::ring ? ElementRange() : own_share(tensor);
  std::erase_if(pieces, [&](const Piece& piece) {
    const bool stays = share.contains(piece.range()) && is_usable_on(at::kCPU, piece.values);
    if (!stays) bring_in(tensor, piece);
    return !stays;
  });
  if (options.algorithm == Algorithm::ring) return all_reduce(tensor, options);
  return start_all_reduce(tensor, options, pieces);
}

Work ProcessGroup::reduce(at::TensorList tensors, int root, AllReduceOptions options) {
  check_outputs("reduce", tensors);
  check_root("reduce", root);
  for (const auto& tensor : tensors) check("reduce", tensor, options);
  return start({.call = reducing(Collective::reduce, options, root), .outputs = tensors});
}

Work ProcessGroup::broadcast(at::TensorList tensors, int root) {
  check_outputs("broadcast", tensors);
  check_root("broadcast", root);
  return start({.call = {.collective = Collective::broadcast, .root = root}, .outputs = tensors});
}

Work ProcessGroup::all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input) {
  check("all_gather", {input});
  check_outputs("all_gather", outputs);
  check_one_each("all_gather", outputs, input);
  return start({.call = of(Collective::all_gather, input), .outputs = outputs, .inputs = input});
}

Work ProcessGroup::gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root) {
  check_root("gather", root);
  check("gather", {input});
  if (rank() == root) {
    check_outputs("gather", outputs);
    check_one_each("gather", outputs, input);
  } else {
    check_none("gather", "outputs", outputs, root);
  }
  return start({.call = of(Collective::gather, input, root), .outputs = outputs, .inputs = input});
}

Work ProcessGroup::scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root) {
  check_root("scatter", root);
  check_outputs("scatter", {output});
  if (rank() == root) {
    check("scatter", inputs);
    check_one_each("scatter", inputs, output);
  } else {
    check_none("scatter", "inputs", inputs, root);
  }
  return start(
      {.call = of(Collective::scatter, output, root), .outputs = output, .inputs = inputs});
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                                  AllReduceOptions options) {
  check_outputs("reduce_scatter", {output});
  check("reduce_scatter", inputs);
  check_one_each("reduce_scatter", inputs, output);
  check("reduce_scatter", output, options);
  Call call = reducing(Collective::reduce_scatter, options);
  call.type = output.scalar_type();
  call.elements = output.numel();
  return start({.call = call, .outputs = output, .inputs = inputs});
}

Work ProcessGroup::all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) {
  check("all_to_all", inputs);
  check_outputs("all_to_all", outputs);
  check_exchange(outputs, inputs);
  return start(
      {.call = {.collective = Collective::all_to_all}, .outputs = outputs, .inputs = inputs});
}

Work ProcessGroup::send(const at::Tensor& tensor, int to) {
  check("send", {tensor});
  check_peer("send", to);
  bytes_sent_ += static_cast<std::uint64_t>(tensor.numel() * tensor.element_size());
  return start({.call = of(Collective::send, tensor, to), .inputs = tensor});
}

Work ProcessGroup::recv(const at::Tensor& tensor, int from) {
  check_outputs("recv", {tensor});
  check_peer("recv", from);
  return start({.call = of(Collective::recv, tensor, from), .outputs = tensor});
}

Work ProcessGroup::barrier() {
  return start({.call = {.collective = Collective::barrier}});
}

// One ring at a time, or the messages of two would mix. The call beside it shows whether every rank
// wants the same; the messages would not.
Work ProcessGroup::start_ring(at::TensorList tensors, const Call& call) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  // The ring may outlive its caller's group.
  const std::shared_ptr<ProcessGroup> group = shared_from_this();
  const RingNeighbours neighbours{
      .send =
          [group, next](const at::Tensor& chunk) {
            group->bytes_sent_ += chunk.nbytes();
            return group->backend_->start({.call = of(Collective::send, chunk, next),
                                           .inputs = chunk,
                                           .tag = Tag::ring});
          },
      .receive =
          [group, previous](const at::Tensor& chunk) {
            return group->backend_->start({.call = of(Collective::recv, chunk, previous),
                                           .outputs = chunk,
                                           .tag = Tag::ring});
          },
      .rank = rank(),
      .size = size(),
      .timeout = timeout()};
  Call announced = call;
  announced.type = tensors.front().scalar_type();
  announced.algorithm = Algorithm::ring;
  announced.tensors = static_cast<std::int32_t>(tensors.size());
  for (const auto& tensor : tensors) announced.elements += tensor.numel();
  const std::lock_guard lock(ring_mutex_);
  auto ring = std::make_shared<RingAllReduce>(tensors.vec(), call, neighbours,
                                              start({.call = announced}), last_ring_.lock());
  last_ring_ = ring;
  share_progress(ring);
  ring->try_advance();
  return Work(std::move(ring));
}

}  // namespace lockstep
