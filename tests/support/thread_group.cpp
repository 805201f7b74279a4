// SPDX-License-Identifier: BSD-3-Clause
// The last rank to arrive at a collective computes it for all.
#include "tests/support/thread_group.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

// One collective, from the first rank's arrival on.
struct Meeting {
  std::string call;  // name, types and sizes: the same on every rank
  std::vector<Tensors> tensors;
  int arrived = 0;
  bool done = false;
};

struct Room {
  explicit Room(int ranks) : size(ranks), left(static_cast<std::size_t>(ranks), false) {}

  int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::shared_ptr<Meeting>> meetings;
  std::vector<bool> left;
  std::string broken;  // why nothing works any more
};

// Computes on the tensors of all ranks: inner index is the position in the rank's list.
using Compute = std::function<void(std::vector<Tensors>&)>;

class Wait : public Operation {
 public:
  Wait(std::shared_ptr<Room> room, std::shared_ptr<Meeting> meeting, std::string where,
       std::chrono::milliseconds timeout)
      : room_(std::move(room)),
        meeting_(std::move(meeting)),
        where_(std::move(where)),
        timeout_(timeout) {}

  bool poll() override {
    const std::lock_guard lock(room_->mutex);
    return check();
  }
  void wait(const Deadline& deadline) override {
    std::unique_lock lock(room_->mutex);
    while (!check()) {
      if (room_->changed.wait_for(lock, deadline.remaining()) == std::cv_status::timeout &&
          deadline.passed() && !check()) {
        room_->broken = where_ + "timed out";
        room_->changed.notify_all();
        throw TimeoutError(room_->broken);
      }
    }
  }
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  bool check() {
    if (meeting_->done) return true;
    if (!room_->broken.empty()) throw BackendError(where_ + room_->broken);
    for (std::size_t rank = 0; rank < room_->left.size(); ++rank) {
      if (!room_->left[rank] || !meeting_->tensors[rank].empty()) continue;
      throw PeerLost(static_cast<int>(rank), fmt::format("{}rank {} left the group", where_, rank),
                     PeerLost::How::left);
    }
    return false;
  }

  std::shared_ptr<Room> room_;
  std::shared_ptr<Meeting> meeting_;
  std::string where_;
  std::chrono::milliseconds timeout_;
};

class ThreadGroup : public ProcessGroup {
 public:
  ThreadGroup(std::shared_ptr<Room> room, int rank, std::chrono::milliseconds timeout)
      : ProcessGroup({.rank = rank,
                      .world_size = room->size,
                      .local_rank = rank,
                      .local_world_size = room->size,
                      .generation = 0,
                      .store = nullptr},
                     {.timeout = timeout}),
        room_(std::move(room)) {}
  ~ThreadGroup() override {
    const std::lock_guard lock(room_->mutex);
    room_->left[static_cast<std::size_t>(rank())] = true;
    room_->changed.notify_all();
  }

  std::string_view backend() const override { return "thread"; }

  Work barrier() override {
    return meet("barrier", {at::zeros({1})}, [](auto&) {});
  }
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    const at::Tensor tensor = at::empty(sizes, options);
    meet(fmt::format("empty {}", tensor.numel()), {tensor}, [](auto&) {}).wait();
    return tensor;
  }
  void abort(const std::string& reason) override {
    const std::lock_guard lock(room_->mutex);
    if (room_->broken.empty()) room_->broken = "the group was aborted: " + reason;
    room_->changed.notify_all();
  }

  int sequence() const { return sequence_; }

 protected:
  Work start_all_reduce(Tensors tensors, AllReduceOptions options) override {
    return meet(fmt::format("all_reduce {}", name(options.op)), std::move(tensors),
                [options, n = size()](std::vector<Tensors>& of) {
                  for (std::size_t i = 0; i < of.front().size(); ++i) {
                    at::Tensor sum = of.front()[i].clone();
                    for (std::size_t rank = 1; rank < of.size(); ++rank) sum.add_(of[rank][i]);
                    if (options.op == ReduceOp::mean) sum.div_(n);
                    if (options.scale != 1) sum.mul_(options.scale);
                    for (Tensors& tensors : of) tensors[i].copy_(sum);
                  }
                });
  }
  Work start_broadcast(Tensors tensors, int root) override {
    return meet(fmt::format("broadcast from {}", root), std::move(tensors),
                [root](std::vector<Tensors>& of) {
                  for (Tensors& tensors : of) {
                    for (std::size_t i = 0; i < tensors.size(); ++i) {
                      tensors[i].copy_(of[static_cast<std::size_t>(root)][i]);
                    }
                  }
                });
  }
  Work start_all_gather(Tensors outputs, at::Tensor input) override {
    outputs.push_back(std::move(input));
    return meet("all_gather", std::move(outputs), [](std::vector<Tensors>& of) {
      for (Tensors& tensors : of) {
        for (std::size_t rank = 0; rank < of.size(); ++rank) tensors[rank].copy_(of[rank].back());
      }
    });
  }
  Work start_reduce_scatter(at::Tensor /*output*/, Tensors /*inputs*/,
                            AllReduceOptions /*options*/) override {
    throw UsageError("reduce_scatter: not in the group of threads");
  }

 private:
  Work meet(const std::string& name, Tensors tensors, const Compute& compute) {
    const at::NoGradGuard no_grad;
    std::string call = name;
    for (const at::Tensor& tensor : tensors) {
      call += fmt::format(" {}x{}", c10::toString(tensor.scalar_type()), tensor.numel());
    }
    const std::string where =
        fmt::format("[thread] {} #{}, rank {} of {}: ", name, sequence_, rank(), size());
    const std::lock_guard lock(room_->mutex);
    if (!room_->broken.empty()) throw BackendError(where + room_->broken);
    auto& meeting = room_->meetings[sequence_++];
    if (!meeting) {
      meeting = std::make_shared<Meeting>();
      meeting->call = call;
      meeting->tensors.resize(static_cast<std::size_t>(size()));
    }
    auto mine = meeting;
    if (mine->call != call) {
      room_->broken = fmt::format("calls differ: {} and {}", mine->call, call);
      room_->changed.notify_all();
      throw UsageError(where + room_->broken);
    }
    mine->tensors[static_cast<std::size_t>(rank())] = std::move(tensors);
    if (++mine->arrived == size()) {
      compute(mine->tensors);
      mine->done = true;
      room_->meetings.erase(sequence_ - 1);
      room_->changed.notify_all();
    }
    return Work(std::make_shared<Wait>(room_, std::move(mine), where, timeout()));
  }

  std::shared_ptr<Room> room_;
  int sequence_ = 0;
};

}  // namespace

void run_rank_threads(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& function,
                      ThreadGroupOptions options) {
  auto room = std::make_shared<Room>(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        function(std::make_shared<ThreadGroup>(room, rank, options.timeout));
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

int collectives_started(const ProcessGroup& group) {
  return dynamic_cast<const ThreadGroup&>(group).sequence();
}

}  // namespace lockstep::testing
