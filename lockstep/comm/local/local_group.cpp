// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/local/local_group.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include "lockstep/comm/core/device_copies.h"
#include "lockstep/comm/core/exchange_sizes.h"
#include "lockstep/comm/local/transfers.h"
#include "lockstep/core/error.h"

namespace lockstep::local {
namespace {

std::vector<HostTensor> all_of(const std::vector<at::Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

class LocalOperation final : public Operation {
 public:
  LocalOperation(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout)
      : engine_(std::move(engine)), timeout_(timeout) {}

  void start(std::shared_ptr<Transfer> transfer, std::size_t tensors = 1) {
    engine_->start(transfer, static_cast<int>(tasks_.size()), static_cast<int>(tensors));
    tasks_.push_back(std::move(transfer));
  }
  void start_barrier(const Call& call) {
    std::shared_ptr<Transfer> transfer = barrier_transfer(call);
    engine_->start(transfer, call.tensor, call.tensors);
    tasks_.push_back(std::move(transfer));
  }
  void start(std::shared_ptr<Message> message, Tag tag) {
    engine_->start(message, tag);
    tasks_.push_back(std::move(message));
  }

  const at::Tensor& output(const at::Tensor& original) { return copies_.output(original); }

  bool finished() const override {
    return copies_.empty() && std::ranges::all_of(tasks_, [](const auto& t) { return t->done(); });
  }

  bool poll() override {
    for (const auto& task : tasks_) {
      if (!engine_->poll(*task)) return false;
    }
    copies_.copy_back();
    return true;
  }

  void wait(const Deadline& deadline) override {
    for (const auto& task : tasks_) engine_->wait(*task, deadline);
    copies_.copy_back();
  }

  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  std::shared_ptr<Engine> engine_;
  std::chrono::milliseconds timeout_;
  c10::SmallVector<std::shared_ptr<Task>, 1> tasks_;
  DeviceCopies copies_;
};

class LocalGroup final : public ProcessGroup {
 public:
  LocalGroup(std::unique_ptr<Peers> peers, Membership membership, GroupOptions options,
             Subgroup subgroup)
      : ProcessGroup(std::move(membership), options),
        backend_(peers->backend()),
        engine_(Engine::make(std::move(peers), this->membership())),
        subgroup_(std::move(subgroup)) {}
  ~LocalGroup() override { leave_if_failing(); }

  std::string_view backend() const override { return backend_; }

  at::Tensor make_empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    if (!options.device().is_cpu()) return at::empty(sizes, options);
    return engine_->make_tensor(sizes, options, Deadline::after(timeout()));
  }

  // Small tensors are summed whole on every rank.
  ElementRange own_share(const at::Tensor& tensor) const override {
    if (!tensor.is_cpu() || !tensor.is_contiguous() || !engine_->is_shared(tensor) ||
        static_cast<std::int64_t>(tensor.nbytes()) <= kInlineBytes) {
      return {};
    }
    return share_of({0, tensor.numel()}, rank(), size(), tensor.element_size());
  }

  void abort(const std::string& reason) override { engine_->abort(reason); }

 private:
  void leave_failing(const std::string& reason) override { engine_->leave_failing(reason); }

  std::shared_ptr<LocalOperation> make_operation() const {
    return std::make_shared<LocalOperation>(engine_, timeout());
  }

  Work start_barrier(const Call& call) override {
    auto operation = make_operation();
    operation->start_barrier(call);
    return Work(std::move(operation));
  }

  Work start_all_reduce(at::TensorList tensors, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(all_reduce_transfer(operation->output(tensor), options, rank(), size()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                               AllReduceOptions options) override {
    const ElementRange share = own_share(tensor);
    std::erase_if(pieces, [&](const Piece& piece) {
      const bool stays =
          share.contains(piece.range()) && on_host(piece.values).is_same(piece.values);
      if (!stays) bring_in(tensor, piece);
      return !stays;
    });
    auto operation = make_operation();
    operation->start(
        all_reduce_transfer(operation->output(tensor), options, rank(), size(), std::move(pieces)));
    return Work(std::move(operation));
  }

  Work start_reduce(at::TensorList tensors, int root, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(reduce_transfer(rank() == root ? operation->output(tensor) : on_host(tensor),
                                       root, options, rank(), size()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_broadcast(at::TensorList tensors, int root) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(broadcast_transfer(operation->output(tensor), root, rank()), tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    auto operation = make_operation();
    for (auto& output : outputs) output = operation->output(output);
    operation->start(all_gather_transfer(all_of(outputs), on_host(input)));
    return Work(std::move(operation));
  }

  Work start_gather(std::vector<at::Tensor> outputs, at::Tensor input, int root) override {
    auto operation = make_operation();
    for (auto& output : outputs) output = operation->output(output);
    operation->start(gather_transfer(all_of(outputs), on_host(input), root));
    return Work(std::move(operation));
  }

  Work start_scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root) override {
    auto operation = make_operation();
    for (auto& input : inputs) input = on_host(input);
    operation->start(
        scatter_transfer(operation->output(output), all_of(inputs), root, rank(), size()));
    return Work(std::move(operation));
  }

  Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                            AllReduceOptions options) override {
    auto operation = make_operation();
    for (auto& input : inputs) input = on_host(input);
    operation->start(
        reduce_scatter_transfer(operation->output(output), all_of(inputs), options, rank()));
    return Work(std::move(operation));
  }

  // Pieces may differ in size from pair to pair, so each goes as a message of its own.
  Work start_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    auto operation = make_operation();
    const auto meeting = exchange_agreement(exchange_sizes(outputs, inputs), backend_, rank());
    operation->start(meeting);
    const at::NoGradGuard no_grad;
    outputs[rank()].copy_(inputs[rank()].reshape(outputs[rank()].sizes()));
    const auto start = [&](Collective direction, const at::Tensor& tensor, int peer) {
      operation->start(std::make_shared<Message>(direction, tensor, peer, meeting->call()),
                       Tag::all_to_all);
    };
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      start(Collective::send, on_host(inputs[peer]), peer);
      start(Collective::recv, operation->output(outputs[peer]), peer);
    }
    return Work(std::move(operation));
  }

  Work start_send(at::Tensor tensor, int to, Tag tag) override {
    auto operation = make_operation();
    operation->start(std::make_shared<Message>(Collective::send, on_host(tensor), to), tag);
    return Work(std::move(operation));
  }

  Work start_recv(at::Tensor tensor, int from, Tag tag) override {
    auto operation = make_operation();
    operation->start(std::make_shared<Message>(Collective::recv, operation->output(tensor), from),
                     tag);
    return Work(std::move(operation));
  }

  std::shared_ptr<ProcessGroup> make_subgroup(const std::string& name,
                                              Membership membership) override {
    return subgroup_(name, std::move(membership), {.timeout = timeout(), .device = device()});
  }

  const std::string backend_;
  std::shared_ptr<Engine> engine_;
  Subgroup subgroup_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_local_group(std::unique_ptr<Peers> peers, Membership membership,
                                               GroupOptions options, Subgroup subgroup) {
  return std::make_shared<LocalGroup>(std::move(peers), std::move(membership), options,
                                      std::move(subgroup));
}

}  // namespace lockstep::local
