// SPDX-License-Identifier: BSD-3-Clause
// Checks each call's arguments and hands the call to the backend.
#include "lockstep/comm/process_group.h"

#include <algorithm>
#include <exception>
#include <set>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "lockstep/comm/check_arguments.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/ring_all_reduce.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/prefix_store.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/piece.h"

namespace lockstep {
namespace {

// First line of the exception that is being handled. One that still unwinds cannot be inspected.
std::string handled_exception() {
  if (!std::current_exception()) return "an exception ended it; its output says which";
  try {
    throw;
  } catch (const std::exception& error) {
    return "an exception ended it: " + first_line(error);
  } catch (...) {
    return "an exception ended it that is not derived from std::exception";
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

// The bytes that each rank sends if parts of this size travel around a ring of all ranks.
std::uint64_t sent_in_a_ring(const at::Tensor& part, int ranks) {
  return static_cast<std::uint64_t>(ranks - 1) * part.nbytes();
}

// Pads the lists of ranks in a split to the same length.
constexpr std::int32_t kNoRank = -1;
// Tells every rank that this rank's list cannot form a group.
constexpr std::int32_t kImpossibleList = -2;

std::vector<int> as_list(const at::Tensor& tensor) {
  const auto* begin = tensor.data_ptr<std::int32_t>();
  std::vector<int> ranks(begin, begin + tensor.numel());
  ranks.erase(std::remove(ranks.begin(), ranks.end(), kNoRank), ranks.end());
  return ranks;
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

// Peers must not mistake a group's end by an exception for an ordinary farewell.
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
  losses.wait_for_lost_rank();
} catch (...) {
  // The peers see a farewell.
}

std::string_view ProcessGroup::backend() const {
  return backend_->name();
}

void ProcessGroup::abort(const std::string& reason) {
  backend_->abort(reason);
}

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::TensorOptions placed =
      options.device(options.has_device() ? options.device() : device());
  checks_of("empty").new_tensor(sizes, placed);
  return backend_->empty(sizes, placed);
}

at::Tensor ProcessGroup::common_memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
  checks_of("common_memory").new_tensor(sizes, options);
  return backend_->common_memory(sizes, options);
}

std::vector<std::vector<int>> ProcessGroup::hosts() const {
  return backend_->hosts();
}

bool ProcessGroup::has_ended(int rank) const {
  return backend_->has_ended(rank);
}

ArgumentChecks ProcessGroup::checks_of(std::string_view operation) const {
  return {*backend_, membership_, device(), operation};
}

Work ProcessGroup::start(const CollectiveArgs& args) {
  ++calls_made_;
  CollectiveArgs made = args;
  made.call.origin = CallScope::current();
  return backend_->start(made);
}

Work ProcessGroup::start_all_reduce(const CollectiveArgs& args) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : args.outputs) bytes += tensor.nbytes();
  bytes_sent_ += 2 * static_cast<std::uint64_t>(size() - 1) * bytes / size();
  return start(args);
}

Work ProcessGroup::all_reduce(at::TensorList tensors, AllReduceOptions options) {
  const ArgumentChecks checks = checks_of("all_reduce");
  checks.outputs(tensors);
  for (const auto& tensor : tensors) checks.reducible(tensor, options);
  const CollectiveArgs args{.call = reducing(Collective::all_reduce, options), .outputs = tensors};
  const bool ring = options.algorithm == Algorithm::ring && size() > 1;
  return ring ? start_ring(args) : start_all_reduce(args);
}

Work ProcessGroup::all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                                     AllReduceOptions options) {
  if (pieces.empty()) return all_reduce(tensor, options);
  std::ranges::sort(pieces, {}, &Piece::begin);
  const ArgumentChecks checks = checks_of("all_reduce");
  checks.outputs(tensor);
  checks.reducible(tensor, options);
  checks.pieces(tensor, pieces);
  const bool ring = options.algorithm == Algorithm::ring;
  const ElementRange share = ring ? ElementRange() : own_share(tensor);
  std::erase_if(pieces, [&](const Piece& piece) {
    const bool stays = share.contains(piece.range()) && is_usable_on(at::kCPU, piece.values);
    if (!stays) copy_into(tensor, piece);
    return !stays;
  });
  if (ring) return all_reduce(tensor, options);
  return start_all_reduce(
      {.call = reducing(Collective::all_reduce, options), .outputs = tensor, .pieces = pieces});
}

Work ProcessGroup::all_reduce_compressed(const at::Tensor& tensor, at::ScalarType wire_type,
                                         AllReduceOptions options) {
  const ArgumentChecks checks = checks_of("all_reduce");
  checks.outputs(tensor);
  checks.reducible(tensor, options);
  return start_all_reduce({.call = reducing(Collective::all_reduce, options),
                           .outputs = tensor,
                           .wire_type = wire_type});
}

ElementRange ProcessGroup::own_share(const at::Tensor& tensor) const {
  return backend_->own_share(tensor);
}

std::vector<std::byte*> ProcessGroup::symmetric_memory(const at::Tensor& tensor) const {
  return backend_->symmetric_memory(tensor);
}

Work ProcessGroup::reduce(at::TensorList tensors, int root, AllReduceOptions options) {
  const ArgumentChecks checks = checks_of("reduce");
  checks.outputs(tensors);
  checks.root(root);
  for (const auto& tensor : tensors) checks.reducible(tensor, options);
  return start({.call = reducing(Collective::reduce, options, root), .outputs = tensors});
}

Work ProcessGroup::broadcast(at::TensorList tensors, int root) {
  const ArgumentChecks checks = checks_of("broadcast");
  checks.outputs(tensors);
  checks.root(root);
  return start({.call = {.collective = Collective::broadcast, .root = root}, .outputs = tensors});
}

Work ProcessGroup::all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input) {
  const ArgumentChecks checks = checks_of("all_gather");
  checks.tensors(input);
  checks.outputs(outputs);
  checks.one_each(outputs, input);
  return start_all_gather(outputs, input);
}

Work ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) {
  const ArgumentChecks checks = checks_of("all_gather_into_tensor");
  checks.tensors(input);
  checks.outputs(output);
  checks.contiguous(output);
  checks.parts(output, input);
  return start_all_gather(output.view({size(), input.numel()}).unbind(), input);
}

Work ProcessGroup::start_all_gather(at::TensorList outputs, const at::Tensor& input) {
  bytes_sent_ += sent_in_a_ring(input, size());
  return start({.call = of(Collective::all_gather, input), .outputs = outputs, .inputs = input});
}

Work ProcessGroup::gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root) {
  const ArgumentChecks checks = checks_of("gather");
  checks.root(root);
  checks.tensors(input);
  if (rank() == root) {
    checks.outputs(outputs);
    checks.one_each(outputs, input);
  } else {
    checks.none("outputs", outputs, root);
  }
  return start({.call = of(Collective::gather, input, root), .outputs = outputs, .inputs = input});
}

Work ProcessGroup::scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root) {
  const ArgumentChecks checks = checks_of("scatter");
  checks.root(root);
  checks.outputs(output);
  if (rank() == root) {
    checks.tensors(inputs);
    checks.one_each(inputs, output);
  } else {
    checks.none("inputs", inputs, root);
  }
  return start(
      {.call = of(Collective::scatter, output, root), .outputs = output, .inputs = inputs});
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                                  AllReduceOptions options) {
  const ArgumentChecks checks = checks_of("reduce_scatter");
  checks.outputs(output);
  checks.tensors(inputs);
  checks.one_each(inputs, output);
  checks.reducible(output, options);
  return start_reduce_scatter(output, inputs, options);
}

Work ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                         AllReduceOptions options) {
  const ArgumentChecks checks = checks_of("reduce_scatter_tensor");
  checks.tensors(input);
  checks.outputs(output);
  checks.parts(input, output);
  checks.reducible(output, options);
  return start_reduce_scatter(output, input.reshape({size(), output.numel()}).unbind(), options);
}

Work ProcessGroup::start_reduce_scatter(const at::Tensor& output, at::TensorList inputs,
                                        const AllReduceOptions& options) {
  Call call = reducing(Collective::reduce_scatter, options);
  call.type = output.scalar_type();
  call.elements = output.numel();
  bytes_sent_ += sent_in_a_ring(output, size());
  return start({.call = call, .outputs = output, .inputs = inputs});
}

Work ProcessGroup::all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) {
  const ArgumentChecks checks = checks_of("all_to_all");
  checks.tensors(inputs);
  checks.outputs(outputs);
  checks.exchange(outputs, inputs);
  return start(
      {.call = {.collective = Collective::all_to_all}, .outputs = outputs, .inputs = inputs});
}

Work ProcessGroup::send(const at::Tensor& tensor, int to) {
  const ArgumentChecks checks = checks_of("send");
  checks.tensors(tensor);
  checks.peer(to);
  bytes_sent_ += static_cast<std::uint64_t>(tensor.numel() * tensor.element_size());
  return start({.call = of(Collective::send, tensor, to), .inputs = tensor});
}

Work ProcessGroup::recv(const at::Tensor& tensor, int from) {
  const ArgumentChecks checks = checks_of("recv");
  checks.outputs(tensor);
  checks.peer(from);
  return start({.call = of(Collective::recv, tensor, from), .outputs = tensor});
}

Work ProcessGroup::barrier() {
  return start({.call = {.collective = Collective::barrier}});
}

// One ring at a time, or the messages of two would mix. The accompanying call shows whether every
// rank makes the same call; the messages would not.
Work ProcessGroup::start_ring(const CollectiveArgs& args) {
  const at::TensorList tensors = args.outputs;
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  // The ring may outlive its caller's group.
  const std::shared_ptr<ProcessGroup> group = shared_from_this();
  const RingNeighbours neighbours{
      .send =
          [group, next](const at::Tensor& chunk) {
            group->bytes_sent_ += chunk.nbytes();
            return group->backend_->start(
                {.call = of(Collective::send, chunk, next), .inputs = chunk, .tag = Tag::ring});
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
  Call announced = args.call;
  announced.type = tensors.front().scalar_type();
  announced.algorithm = Algorithm::ring;
  announced.tensors = static_cast<std::int32_t>(tensors.size());
  for (const auto& tensor : tensors) announced.elements += tensor.numel();
  const std::lock_guard lock(ring_mutex_);
  auto ring = std::make_shared<RingAllReduce>(tensors.vec(), args.call, neighbours,
                                              start({.call = announced}), last_ring_.lock());
  last_ring_ = ring;
  share_progress(ring);
  ring->try_advance();
  return Work(std::move(ring));
}

// All ranks agree on the new groups before any rank joins one.
std::shared_ptr<ProcessGroup> ProcessGroup::split(const std::vector<int>& ranks) {
  const ArgumentChecks checks = checks_of("split");
  const bool possible =
      std::ranges::all_of(ranks, [&](int member) { return member >= 0 && member < size(); }) &&
      std::set(ranks.begin(), ranks.end()).size() == ranks.size();
  // Compared first, so that errors mention the split and not the all_gather.
  backend_->start({.call = {.collective = Collective::split}}).wait();
  const at::Tensor own = at::full({size()}, possible ? kNoRank : kImpossibleList, at::kInt);
  if (possible) std::copy(ranks.begin(), ranks.end(), own.data_ptr<std::int32_t>());
  std::vector<at::Tensor> lists;
  for (int peer = 0; peer < size(); ++peer) lists.push_back(at::full({size()}, kNoRank, at::kInt));
  all_gather(lists, own).wait();
  const int number = ++splits_;

  if (!possible) {
    throw UsageError(checks.context(),
                     fmt::format("the list [{}] names a rank twice, or one that is not in this "
                                 "group, whose ranks are 0 to {}",
                                 fmt::join(ranks, ", "), size() - 1));
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (lists[peer][0].item<int>() != kImpossibleList) continue;
    throw UsageError(checks.context(), fmt::format("rank {} passed an invalid list", peer),
                     "its own error says why");
  }
  // Every rank sees all lists, so all of them find the same fault.
  for (int peer = 0; peer < size(); ++peer) {
    const auto list = as_list(lists[peer]);
    for (const int member : list) {
      const auto other = as_list(lists[member]);
      if (other == list || std::ranges::find(list, peer) == list.end()) continue;
      throw UsageError(checks.context(),
                       fmt::format("rank {} names the ranks [{}], but rank {}, which is one of "
                                   "them, names [{}]",
                                   peer, fmt::join(list, ", "), member, fmt::join(other, ", ")),
                       "ranks of one new group must pass the same list");
    }
  }
  if (std::ranges::find(ranks, rank()) == ranks.end()) return nullptr;
  // Its ranks rendezvous where the group's did, under a name of their own.
  const std::string name = fmt::format("{}/{}", number, fmt::join(ranks, "-"));
  Membership member = membership_.part(ranks);
  if (member.store) {
    member.store = std::make_shared<PrefixStore>(name + "/", std::move(member.store));
  }
  const GroupLosses losses(member);
  try {
    auto backend = backend_->split(name, member);
    return std::make_shared<ProcessGroup>(std::move(member),
                                          GroupOptions{.timeout = timeout(), .device = device()},
                                          std::move(backend));
  } catch (const StoreLost& error) {
    losses.note(error);
    throw;
  } catch (const Error&) {
    losses.note(std::current_exception());
    throw;
  }
}

}  // namespace lockstep
