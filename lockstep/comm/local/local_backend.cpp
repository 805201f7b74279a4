// SPDX-License-Identifier: BSD-3-Clause
// Carries out a process group's calls by transfers and messages.
#include "lockstep/comm/local/local_backend.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/core/copying_operation.h"
#include "lockstep/comm/local/engine.h"
#include "lockstep/comm/local/transfers.h"

namespace lockstep::local {
namespace {

std::vector<HostTensor> in_host_memory(const std::vector<at::Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

// One rank's part of one call: starts the transfers and messages that carry it out, in order.
class StartedCall {
 public:
  StartedCall(const std::shared_ptr<Engine>& engine, std::chrono::milliseconds timeout, int rank,
              int size)
      : engine_(*engine),
        operation_(std::make_shared<CopyingOperation>(engine, timeout, at::kCPU)),
        rank_(rank),
        size_(size) {}

  void start(const CollectiveArgs& args) {
    if (args.moves_nothing()) return begin(barrier_transfer(args.call));
    switch (args.call.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
        for (std::size_t i = 0; i < args.outputs.size(); ++i) reduce(args, i);
        return;
      case Collective::broadcast:
        for (std::size_t i = 0; i < args.outputs.size(); ++i) {
          begin(broadcast_transfer(args.call_of_output(i), output(args, i), rank_));
        }
        return;
      case Collective::all_gather:
      case Collective::gather:
        return begin(gather_transfer(args.call, outputs(args), input(args)));
      case Collective::scatter:
        return begin(scatter_transfer(args.call, output(args), inputs(args), rank_, size_));
      case Collective::reduce_scatter:
        return begin(reduce_scatter_transfer(args.call, output(args), inputs(args), rank_));
      case Collective::all_to_all:
        return exchange(args);
      case Collective::send:
        return begin(std::make_shared<Message>(args.call, input(args)), args.tag);
      case Collective::recv:
        return begin(std::make_shared<Message>(args.call, output(args)), args.tag);
      case Collective::barrier:
      case Collective::empty:
      case Collective::split:
        return;  // have no tensors
    }
  }

  Work work() && { return Work(std::move(operation_)); }

 private:
  HostTensor output(const CollectiveArgs& args, std::size_t index = 0) {
    return operation_->output(args.outputs[index]);
  }
  HostTensor input(const CollectiveArgs& args) const { return operation_->input(args.inputs[0]); }
  std::vector<HostTensor> outputs(const CollectiveArgs& args) {
    return in_host_memory(operation_->outputs(args.outputs));
  }
  std::vector<HostTensor> inputs(const CollectiveArgs& args) const {
    return in_host_memory(operation_->inputs(args.inputs));
  }

  void begin(std::shared_ptr<Transfer> transfer) {
    engine_.start(transfer);
    operation_->add(std::move(transfer));
  }
  void begin(std::shared_ptr<Message> message, Tag tag) {
    engine_.start(message, tag);
    operation_->add(std::move(message));
  }

  void reduce(const CollectiveArgs& args, std::size_t index) {
    const Call call = args.call_of_output(index);
    const bool receives = call.root < 0 || call.root == rank_;
    begin(reduce_transfer(call,
                          receives ? output(args, index) : operation_->input(args.outputs[index]),
                          rank_, size_, {args.pieces.begin(), args.pieces.end()}));
  }

  // Sizes may differ from pair to pair, so each tensor goes as a message of its own.
  void exchange(const CollectiveArgs& args) {
    const auto agreement =
        exchange_agreement(exchange_sizes(args.outputs, args.inputs), engine_.backend(), rank_);
    begin(agreement);
    const auto own = static_cast<std::size_t>(rank_);
    const at::NoGradGuard no_grad;
    args.outputs[own].copy_(args.inputs[own].reshape(args.outputs[own].sizes()));
    for (std::size_t peer = 0; peer < args.outputs.size(); ++peer) {
      if (peer == own) continue;
      const auto message = [&](Collective direction, const HostTensor& tensor) {
        const Call call{.collective = direction,
                        .type = tensor.type(),
                        .root = static_cast<std::int32_t>(peer),
                        .elements = tensor.elements()};
        begin(std::make_shared<Message>(call, tensor, agreement->call()), Tag::all_to_all);
      };
      message(Collective::send, operation_->input(args.inputs[peer]));
      message(Collective::recv, output(args, peer));
    }
  }

  Engine& engine_;
  std::shared_ptr<CopyingOperation> operation_;  // keeps the engine
  int rank_;
  int size_;
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::unique_ptr<Peers> peers, const Membership& membership, GroupOptions options,
               Subgroup subgroup)
      : name_(peers->backend()),
        rank_(membership.rank),
        size_(membership.world_size),
        options_(std::move(options)),
        engine_(Engine::make(std::move(peers), membership)),
        subgroup_(std::move(subgroup)) {}

  std::string_view name() const override { return name_; }

  Work start(const CollectiveArgs& args) override {
    StartedCall call(engine_, options_.timeout, rank_, size_);
    call.start(args);
    return std::move(call).work();
  }

  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    if (!options.device().is_cpu()) return at::empty(sizes, options);
    return engine_->make_tensor(sizes, options, Deadline::after(options_.timeout));
  }
  ElementRange own_share(const at::Tensor& tensor) const override {
    return engine_->own_share(tensor);
  }
  std::vector<std::byte*> symmetric_memory(const at::Tensor& tensor) const override {
    return engine_->symmetric_memory(tensor);
  }
  at::Tensor common_memory(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return engine_->make_common_tensor(sizes, options, Deadline::after(options_.timeout));
  }
  bool has_ended(int rank) const override { return engine_->has_ended(rank); }

  std::shared_ptr<Backend> split(const std::string& name, Membership membership) override {
    return subgroup_(name, std::move(membership), options_);
  }

  void abort(const std::string& reason) override { engine_->abort(reason); }
  void leave_failing(const std::string& reason) override { engine_->leave_failing(reason); }

 private:
  const std::string name_;
  const int rank_;
  const int size_;
  const GroupOptions options_;
  std::shared_ptr<Engine> engine_;
  Subgroup subgroup_;
};

}  // namespace

std::shared_ptr<Backend> make_local_backend(std::unique_ptr<Peers> peers,
                                            const Membership& membership, GroupOptions options,
                                            Subgroup subgroup) {
  return std::make_shared<LocalBackend>(std::move(peers), membership, std::move(options),
                                        std::move(subgroup));
}

}  // namespace lockstep::local
