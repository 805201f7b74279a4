// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/shm/shm_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "lockstep/collective/shm/engine.h"
#include "lockstep/collective/shm/transfers.h"

namespace lockstep {
namespace {

using shm::Engine;
using shm::Transfer;

// The tensor itself if its bytes can be used as they are, else a contiguous copy in host memory.
at::Tensor on_host(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().to(at::kCPU).contiguous();
}

class ShmOperation final : public Operation {
 public:
  ShmOperation(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout)
      : engine_(std::move(engine)), timeout_(timeout) {}

  void start(std::shared_ptr<Transfer> transfer, std::size_t tensors = 1) {
    engine_->start(transfer, static_cast<int>(transfers_.size()), static_cast<int>(tensors));
    transfers_.push_back(std::move(transfer));
  }

  // What the transfers use for a tensor that they write. The original gets the result at the end.
  at::Tensor output(const at::Tensor& original) {
    at::Tensor staged = on_host(original);
    if (!staged.is_alias_of(original)) copies_.push_back({original, staged});
    return staged;
  }

  bool poll() override {
    for (const auto& transfer : transfers_) {
      if (!engine_->poll(*transfer)) return false;
    }
    copy_back();
    return true;
  }

  void wait(const Deadline& deadline) override {
    for (const auto& transfer : transfers_) engine_->wait(*transfer, deadline);
    copy_back();
  }

  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  struct Copy {
    at::Tensor original;
    at::Tensor staged;
  };

  void copy_back() {
    const at::NoGradGuard no_grad;
    for (auto& copy : copies_) copy.original.copy_(copy.staged.view_as(copy.original));
    copies_.clear();
  }

  std::shared_ptr<Engine> engine_;
  std::chrono::milliseconds timeout_;
  std::vector<std::shared_ptr<Transfer>> transfers_;
  std::vector<Copy> copies_;
};

class ShmGroup final : public ProcessGroup {
 public:
  ShmGroup(Membership membership, GroupOptions options)
      : ProcessGroup(std::move(membership), options),
        engine_(std::make_shared<Engine>(this->membership(), Deadline::after(timeout()))) {}

  std::string_view backend() const override { return "shm"; }

  Work barrier() override {
    auto operation = make_operation();
    operation->start(shm::barrier_transfer());
    return Work(std::move(operation));
  }

  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    if (!options.device().is_cpu()) return at::empty(sizes, options);
    const auto bytes =
        static_cast<std::size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
    std::uint64_t segment = 0;
    auto mappings =
        engine_->share_memory(std::max<std::size_t>(bytes, 1), segment, Deadline::after(timeout()));
    return engine_->shared_tensors().adopt(segment, std::move(mappings), rank(), sizes, options);
  }

  void abort(const std::string& reason) override { engine_->abort(reason); }

 private:
  std::shared_ptr<ShmOperation> make_operation() const {
    return std::make_shared<ShmOperation>(engine_, timeout());
  }

  Work start_all_reduce(std::vector<at::Tensor> tensors, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(shm::all_reduce_transfer(operation->output(tensor), options, rank(), size(),
                                                engine_->shared_tensors()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_broadcast(std::vector<at::Tensor> tensors, int root) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(shm::broadcast_transfer(operation->output(tensor), root, rank()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    auto operation = make_operation();
    for (auto& output : outputs) output = operation->output(output);
    operation->start(shm::all_gather_transfer(std::move(outputs), on_host(input)));
    return Work(std::move(operation));
  }

  Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                            AllReduceOptions options) override {
    auto operation = make_operation();
    for (auto& input : inputs) input = on_host(input);
    operation->start(shm::reduce_scatter_transfer(operation->output(output), std::move(inputs),
                                                  options, rank()));
    return Work(std::move(operation));
  }

  std::shared_ptr<Engine> engine_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_shm_group(Membership membership, GroupOptions options) {
  return std::make_shared<ShmGroup>(std::move(membership), options);
}

}  // namespace lockstep
