// SPDX-License-Identifier: BSD-3-Clause
// Compares the threads of this process with those at load, and looks for open GPUs, in /proc.
#include "lockstep/launch/may_fork.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::vector<pid_t> threads() {
  std::vector<pid_t> ids;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const std::string name = task.path().filename();
    pid_t id = 0;
    std::from_chars(name.data(), name.data() + name.size(), id);
    ids.push_back(id);
  }
  return ids;
}

// Initialized before main, and after the libraries that the program is linked to.
const std::vector<pid_t> kAtLoad = threads();

// Without /proc nobody can tell whether there are other threads.
bool are_known() {
  return !threads().empty();
}

// Compares thread ids, not counts: threads from load time may have ended and others started.
int count_new_threads() {
  const pid_t main_thread = ::getpid();  // in a forked child, too
  const auto is_new = [&](pid_t id) {
    return id != main_thread && std::ranges::count(kAtLoad, id) == 0;
  };
  const auto count = static_cast<int>(std::ranges::count_if(threads(), is_new));
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer starts its own thread when there is a second one, or a fork.
  return std::max(0, count - 1);
#else
  return count;
#endif
}

// A joined thread may still be listed for a moment.
int lasting_new_threads() {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(200));
  int count = count_new_threads();
  while (count > 0 && !deadline.passed()) {
    ::poll(nullptr, 0, 1);
    count = count_new_threads();
  }
  return count;
}

// NVIDIA's and AMD's drivers are used through device files.
bool has_opened_a_gpu() {
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = std::filesystem::read_symlink(file, error);
    if (name.starts_with("/dev/nvidia") || name.starts_with("/dev/kfd")) return true;
  }
  return false;
}

}  // namespace

bool may_fork() {
  return are_known() && lasting_new_threads() == 0 && !has_opened_a_gpu();
}

void require_may_fork(const std::string& caller) {
  if (!are_known()) {
    throw BackendError(
        caller +
        ": cannot tell how many threads this process has, since /proc/self/task cannot be read; "
        "mount /proc, or start the program with `lockstep run`");
  }
  if (has_opened_a_gpu()) {
    throw UsageError(caller +
                     ": this process has used a GPU, which no process forked from it can use. Call "
                     "spawn before anything uses a GPU, or have ranks started anew "
                     "(StartMethod::spawn, from main), or start the program with `lockstep run`");
  }
  const int count = lasting_new_threads();
  if (count == 0) return;
  throw UsageError(fmt::format(
      "{}: this process has {} thread{} that it did not have when it was loaded; a rank forked "
      "from it would hang in libtorch. Call spawn before anything else uses libtorch, or keep to "
      "one thread (set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1), or have ranks started anew "
      "(StartMethod::spawn, from main), or start the program with `lockstep run`",
      caller, count, count == 1 ? "" : "s"));
}

}  // namespace lockstep
