// SPDX-License-Identifier: BSD-3-Clause
// Threads of the library's own. Signals are for the program's threads: these take none.
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
  // The body is given a descriptor that has something to read (POLLIN) once it is to end.
  // BackendError if there can be no such thread.
  explicit ServiceThread(std::function<void(int stop)> body);
  // Tells the body to end, and waits for that; not in a forked child, where there is no such
  // thread.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

 private:
  pid_t owner_;
  UniqueFd stop_;
  std::thread thread_;
};

// Runs the body in a thread that nobody waits for: it may hang in a library that knows no deadline,
// and must use nothing that others destroy. BackendError if there can be no such thread.
void leave_to_thread(std::function<void()> body);

// The same for a function with a result, or an exception; whoever wants it waits as long as he
// likes.
template <class Function>
auto ask_in_thread(Function function) -> std::future<std::invoke_result_t<Function>> {
  using Task = std::packaged_task<std::invoke_result_t<Function>()>;
  const auto task = std::make_shared<Task>(std::move(function));
  leave_to_thread([task] { (*task)(); });
  return task->get_future();
}

}  // namespace lockstep
