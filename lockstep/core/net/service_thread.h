// SPDX-License-Identifier: BSD-3-Clause
// The library's own threads. They block all signals, which are for the program's threads.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

class ServiceThread {
 public:
  // The body gets a descriptor that becomes readable (POLLIN) when the body must end. BackendError
  // if no thread can be started.
  explicit ServiceThread(std::function<void(int stop)> body);
  // Tells the body to end and joins the thread. Does neither in a forked child, which has no such
  // thread.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  // Neither tells the body to end nor joins the thread, which may hang: it must not use anything
  // that others destroy.
  void leave();

 private:
  pid_t owner_;
  std::shared_ptr<UniqueFd> stop_;  // the thread has it too
  std::thread thread_;
};

// Runs the body in a detached thread. The body may hang in a library that has no deadlines, so it
// must not use anything that others destroy. BackendError if no thread can be started.
void leave_to_thread(std::function<void()> body);

// Like leave_to_thread(), for a function whose result or exception the future delivers. The caller
// decides how long to wait.
template <class Function>
auto ask_in_thread(Function function) -> std::future<std::invoke_result_t<Function>> {
  using Task = std::packaged_task<std::invoke_result_t<Function>()>;
  const auto task = std::make_shared<Task>(std::move(function));
  leave_to_thread([task] { (*task)(); });
  return task->get_future();
}

}  // namespace lockstep
