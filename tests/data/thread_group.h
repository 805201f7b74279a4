// SPDX-License-Identifier: BSD-3-Clause
// Ranks as threads of a test, with the one collective that data/ uses: a sum.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "lockstep/collective/process_group.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

class ThreadGroup : public ProcessGroup {
 public:
  struct Shared {
    explicit Shared(int size) : tensors(static_cast<std::size_t>(size)), barrier(size) {}
    std::vector<at::Tensor> tensors;
    std::barrier<> barrier;
  };

  ThreadGroup(int rank, std::shared_ptr<Shared> shared)
      : ProcessGroup({.rank = rank,
                      .world_size = static_cast<int>(shared->tensors.size()),
                      .local_rank = rank,
                      .local_world_size = static_cast<int>(shared->tensors.size()),
                      .generation = 0,
                      .store = nullptr},
                     {}),
        shared_(std::move(shared)) {}

  std::string_view backend() const override { return "test"; }
  Work start_all_reduce(std::vector<at::Tensor> tensors, AllReduceOptions) override {
    for (auto& tensor : tensors) {
      shared_->tensors[static_cast<std::size_t>(rank())] = tensor;
      shared_->barrier.arrive_and_wait();
      at::Tensor sum = shared_->tensors[0].clone();
      for (std::size_t i = 1; i < shared_->tensors.size(); ++i) sum += shared_->tensors[i];
      shared_->barrier.arrive_and_wait();
      tensor.copy_(sum);
    }
    return {};
  }
  Work start_broadcast(std::vector<at::Tensor>, int) override { throw Error("not in this test"); }
  Work start_all_gather(std::vector<at::Tensor>, at::Tensor) override {
    throw Error("not in this test");
  }
  Work start_reduce_scatter(at::Tensor, std::vector<at::Tensor>, AllReduceOptions) override {
    throw Error("not in this test");
  }
  Work barrier() override { throw Error("not in this test"); }
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return at::empty(sizes, options);
  }
  void abort(const std::string&) override {}

 private:
  std::shared_ptr<Shared> shared_;
};

inline void run_thread_ranks(int size, const std::function<void(ThreadGroup&)>& body) {
  auto shared = std::make_shared<ThreadGroup::Shared>(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadGroup group(rank, shared);
        body(group);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        shared->barrier.arrive_and_drop();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lockstep::testing
