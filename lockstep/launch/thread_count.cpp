// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/launch/thread_count.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>
#include <poll.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// Initialised before main, after the libraries that the program is linked to.
const int at_load = thread_count();

}  // namespace

int thread_count() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  const auto count = static_cast<int>(std::distance(begin(tasks), end(tasks)));
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer has one of its own as soon as there is a second one, or a fork.
  return std::max(1, count - 1);
#else
  return count;
#endif
}

int thread_count_at_load() {
  return at_load;
}

void require_no_new_threads(const std::string& caller) {
  // A thread that has been joined may still be listed for a moment.
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(200));
  int now = thread_count();
  while (now > at_load && !deadline.passed()) {
    ::poll(nullptr, 0, 1);
    now = thread_count();
  }
  if (now <= at_load) return;
  throw UsageError(fmt::format(
      "{}: this process has {} threads, and had {} when it was loaded; a rank forked "
      "from it would hang in libtorch. Call spawn before anything else uses libtorch, or "
      "keep to one thread (set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1), or start "
      "the program with `lockstep run`",
      caller, now, at_load));
}

}  // namespace lockstep
