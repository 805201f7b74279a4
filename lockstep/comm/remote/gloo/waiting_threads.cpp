// SPDX-License-Identifier: BSD-3-Clause
// Starts threads as functions need them, and joins them at the end.
#include "lockstep/comm/remote/gloo/waiting_threads.h"

namespace lockstep::gloo {

WaitingThreads::~WaitingThreads() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  there_is_more_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WaitingThreads::run(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  functions_.push_back(std::move(function));
  if (functions_.size() > idle_ && threads_.size() < most_) {
    threads_.emplace_back([this] { work(); });
  }
  there_is_more_.notify_one();
}

void WaitingThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    there_is_more_.wait(lock, [this] { return ending_ || !functions_.empty(); });
    --idle_;
    if (functions_.empty()) return;
    auto function = std::move(functions_.front());
    functions_.pop_front();
    lock.unlock();
    function();
    function = nullptr;  // destroys its captures while the lock is not held
    lock.lock();
  }
}

}  // namespace lockstep::gloo
