// SPDX-License-Identifier: BSD-3-Clause
// Keeps threads that run successive rounds of jobs, and gives each its share of the intra-op
// threads.
#include "lockstep/parallel/replica_workers.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/spinning.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/forward_state.h"

namespace lockstep {
namespace {

// A function of a library that libtorch may have been built with; null without it.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// The lower-case name is Fortran's, which takes an address.
int set_mkl_threads(int threads) {
  static auto* const set = find<int(int)>("MKL_Set_Num_Threads_Local");
  return set ? set(threads) : 0;
}

struct OpenBlas {
  void (*set_threads)(int) = find<void(int)>("openblas_set_num_threads");
  int (*threads)() = find<int()>("openblas_get_num_threads");

  bool is_there() const { return set_threads && threads; }
};

const OpenBlas& open_blas() {
  static const OpenBlas library;
  return library;
}

std::mutex blas_shares_mutex;
int blas_shares = 0;
int blas_threads_before = 0;

// For the calling thread, while this object lives: its OpenMP regions, and MKL.
class ThreadShare {
 public:
  explicit ThreadShare(int threads);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int threads_;
  int threads_before_;
  int mkl_before_ = 0;
};

// For OpenBLAS in all threads, while any such object lives: OpenBLAS has only one number per
// process, and with more than one thread it computes one product after another.
class BlasShare {
 public:
  explicit BlasShare(int threads);
  ~BlasShare();
  BlasShare(const BlasShare&) = delete;
  BlasShare& operator=(const BlasShare&) = delete;
};

// at::get_num_threads also makes libtorch set this thread's number; libtorch does so once, and
// would otherwise do it later.
ThreadShare::ThreadShare(int threads) : threads_(threads), threads_before_(at::get_num_threads()) {
  if (threads_ == threads_before_) return;
  set_openmp_threads(threads_);
  mkl_before_ = set_mkl_threads(threads_);
}

ThreadShare::~ThreadShare() {
  if (threads_ == threads_before_) return;
  set_mkl_threads(mkl_before_);
  set_openmp_threads(threads_before_);
}

BlasShare::BlasShare(int threads) {
  if (!open_blas().is_there()) return;
  const std::lock_guard lock(blas_shares_mutex);
  if (blas_shares++ > 0) return;
  blas_threads_before = open_blas().threads();
  if (threads < blas_threads_before) open_blas().set_threads(threads);
}

BlasShare::~BlasShare() {
  if (!open_blas().is_there()) return;
  const std::lock_guard lock(blas_shares_mutex);
  if (--blas_shares > 0) return;
  if (open_blas().threads() < blas_threads_before) open_blas().set_threads(blas_threads_before);
}

// The object whose job this thread is running.
thread_local const ReplicaWorkers* at_work_for = nullptr;

// Polls a condition for at most a millisecond. Pauses in between, since another thread may share
// the core, and yields the core to threads that need it.
template <class Condition>
void look_out(bool has_core, Condition&& has_come) {
  constexpr auto kAtMost = std::chrono::milliseconds(1);
  const int pauses = has_core ? 200 : 1;  // about 5 us
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kAtMost) {
    for (int i = 0; i < pauses; ++i) {
      if (has_come()) return;
      pause_core();
    }
    std::this_thread::yield();
  }
}

}  // namespace

struct ReplicaWorkers::Round {
  const std::function<void(int)>& job;
  int count;
  std::vector<int> others;  // not the caller's
  std::atomic<std::size_t> others_left = 0;
  std::vector<std::exception_ptr> errors = std::vector<std::exception_ptr>(count);
  ForwardState state = {};
  int threads_each = std::max(1, at::get_num_threads() / count);
};

ReplicaWorkers::~ReplicaWorkers() {
  stop();
}

void ReplicaWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ReplicaWorkers::count_moved(const at::Tensor& tensor, int replica) {
  if (replica == 0 || !tensor.defined()) return;
  if (tensor.layout() == at::kStrided) return count_moved(tensor.nbytes());
  if (tensor.is_sparse()) count_moved(tensor._indices().nbytes() + tensor._values().nbytes());
}

void ReplicaWorkers::perform(Round& round, int index) {
  const ForwardStateGuard state(round.state);
  const ThreadShare threads(round.threads_each);
  const auto* outer = std::exchange(at_work_for, this);  // another DataParallel's replica
  try {
    round.job(index);
  } catch (...) {
    round.errors[static_cast<std::size_t>(index)] = std::current_exception();
  }
  at_work_for = outer;
}

void ReplicaWorkers::serve(int worker, std::uint64_t rounds_seen) {
  while (true) {
    // Sleeping and waking take longer than the pause between two rounds of a step.
    look_out(have_cores_, [&] { return stopped_ || rounds_ != rounds_seen; });
    std::unique_lock lock(mutex_);
    begun_.wait(lock, [&] { return stopped_ || rounds_ != rounds_seen; });
    if (stopped_) return;
    rounds_seen = rounds_;
    // This worker takes no part in a small round, which may be over by now.
    if (!round_ || static_cast<std::size_t>(worker) > round_->others.size()) continue;
    Round& round = *round_;
    lock.unlock();
    perform(round, round.others[static_cast<std::size_t>(worker) - 1]);
    // Under the lock: the caller, which owns the round, must not continue before it is notified.
    lock.lock();
    if (--round.others_left == 0) ended_.notify_one();
  }
}

void ReplicaWorkers::start_threads(int count) {
  if (static_cast<int>(threads_.size()) >= count) return;
  have_cores_ = count < available_cores();
  while (static_cast<int>(threads_.size()) < count) {
    const int worker = static_cast<int>(threads_.size()) + 1;
    try {
      threads_.emplace_back([this, worker, seen = rounds_.load()] { serve(worker, seen); });
    } catch (const std::system_error& error) {
      throw BackendError(
          {.component = "DataParallel"},
          fmt::format("the system refused a thread for replica {} ({})", worker, error.what()),
          "use fewer replicas");
    }
  }
}

void ReplicaWorkers::run(const char* what, int count, const std::function<void(int)>& job,
                         const std::vector<int>& callers) {
  if (at_work_for == this) {
    throw UsageError({.component = "DataParallel"},
                     "a replica called the DataParallel that runs it",
                     "let the module call its own layers, not its wrapper");
  }
  const std::lock_guard one_run(one_run_);
  Round round{.job = job, .count = count, .others = {}};
  for (int index = 0; index < count; ++index) {
    if (std::ranges::find(callers, index) == callers.end()) round.others.push_back(index);
  }
  round.others_left = round.others.size();
  const BlasShare blas(round.threads_each);
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    for (int index = 0; index < count; ++index) perform(round, index);
  } else {
    start_threads(static_cast<int>(round.others.size()));
    round_ = &round;
    ++rounds_;
    lock.unlock();
    begun_.notify_all();
    for (const int index : callers) perform(round, index);
    look_out(have_cores_, [&] { return round.others_left == 0; });
    lock.lock();
    ended_.wait(lock, [&] { return round.others_left == 0; });
    round_ = nullptr;
  }
  for (int index = 0; index < count; ++index) {
    const std::exception_ptr& error = round.errors[static_cast<std::size_t>(index)];
    if (!error) continue;
    const ErrorContext context{
        .component = "DataParallel",
        .operation = fmt::format("{} of replica {} of {}", what, index, count)};
    ErrorDetails details{.cause = "it threw an exception that is not derived from std::exception",
                         .contexts = {context}};
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& exception) {
      details = within(context, exception);
    } catch (...) {
    }
    throw ReplicaFailed(index, error, std::move(details));
  }
}

}  // namespace lockstep
