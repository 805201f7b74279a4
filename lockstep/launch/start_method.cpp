// SPDX-License-Identifier: BSD-3-Clause
// Compares the threads of this process with those at load, and looks for open GPUs, in /proc;
// executes this program again, and reads a rank's RankStart at load.
#include "lockstep/launch/start_method.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/packing.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/launch/rank_process.h"

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

// Initialized before main, and after the libraries of the program.
const std::vector<pid_t> kThreadsAtLoad = threads();

// Whether /proc shows this process's threads.
bool can_list_threads() {
  return !threads().empty();
}

// Compares thread ids, not counts: threads from load time may have ended and others started.
int count_new_threads() {
  const pid_t main_thread = ::getpid();  // in a forked child, too
  const auto is_new = [&](pid_t id) {
    return id != main_thread && std::ranges::count(kThreadsAtLoad, id) == 0;
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

// "PID FD": the rank's process, and the file with its RankStart. Processes that the rank starts
// inherit the variable, but have other pids.
constexpr const char* kVariable = "LOCKSTEP_SPAWNED";
constexpr const char* kFile = "lockstep-spawned";

[[noreturn]] void fail(const char* what) {
  throw RankExit{126, fmt::format("cannot run this program again: {}: {}; "
                                  "StartMethod::fork does not need it",
                                  what, std::strerror(errno))};
}

std::string read_all(int fd) {
  std::string text;
  char bytes[65536];
  for (ssize_t count = 0; (count = ::read(fd, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

// Reads a file of /proc that records how this process was started: strings, each terminated by a
// zero byte. Empty if it cannot be read.
std::vector<std::string> started_with(const char* file) {
  const UniqueFd fd(::open(file, O_RDONLY | O_CLOEXEC));
  std::istringstream all(fd ? read_all(fd.get()) : "");
  std::vector<std::string> strings;
  for (std::string text; std::getline(all, text, '\0');) strings.push_back(text);
  return strings;
}

std::string pack_start(const RankStart& start, int last_words) {
  return pack(last_words, start.call, start.which, start.rank, start.variables, start.cores,
              start.threads, start.earlier);
}

// This process as it was when the program was loaded.
struct AtLoad {
  pid_t pid = ::getpid();
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
  std::filesystem::path folder;
  std::vector<std::string> arguments;
  std::optional<RankStart> start;
  UniqueFd last_words;
  bool in_rank = false;

  AtLoad() {
    std::error_code gone;
    folder = std::filesystem::current_path(gone);
    arguments = started_with("/proc/self/cmdline");
    std::istringstream variable(::getenv(kVariable) != nullptr ? ::getenv(kVariable) : "");
    pid_t rank = 0;
    int fd = -1;
    if (!(variable >> rank >> fd) || rank != pid) return;
    // The pid may be reused, and the variable inherited from a rank that had it before.
    std::error_code error;
    const auto name = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
    if (error || name.string().find(kFile) == std::string::npos) return;
    const UniqueFd file(fd);
    take(read_all(file.get()));
  }

  void take(std::string_view packed) {
    int words = -1;
    start.emplace();
    unpack(packed, words, start->call, start->which, start->rank, start->variables, start->cores,
           start->threads, start->earlier);
    last_words.reset(words);
    // Programs that main starts before the call must not inherit it.
    ::fcntl(last_words.get(), F_SETFD, FD_CLOEXEC);
  }
};

AtLoad& at_load() {
  static AtLoad state;
  return state;
}

// Before main, which may change folders or overwrite its arguments in place.
[[maybe_unused]] const AtLoad& read_at_load = at_load();

// The program's path, which ps shows, if that still leads to the program.
std::string executable() {
  constexpr const char* kLink = "/proc/self/exe";
  std::error_code error;
  const std::filesystem::path name = std::filesystem::read_symlink(kLink, error);
  return !error && std::filesystem::equivalent(name, kLink, error) ? name.string() : kLink;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A file in memory, which the executed program inherits.
int inherited_file(const std::string& text) {
  const int fd = ::memfd_create(kFile, 0);
  if (fd < 0) fail("memfd_create");
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count < 0) fail("write");
    done += static_cast<std::size_t>(count);
  }
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

// Threads that the program started before the call have their own masks.
void pin_all_threads(const std::vector<int>& cores) {
  if (cores == allowed_cores()) return;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    pin_to_cores(cores, std::atoi(task.path().filename().c_str()));
  }
}

}  // namespace

bool may_fork() {
  return can_list_threads() && lasting_new_threads() == 0 && !has_opened_a_gpu();
}

void require_may_fork(const std::string& call) {
  const ErrorContext context{.operation = call};
  if (!can_list_threads()) {
    throw BackendError(
        context,
        "cannot tell how many threads this process has, since /proc/self/task cannot be read",
        "mount /proc, or start the program with `lockstep run`");
  }
  if (has_opened_a_gpu()) {
    throw UsageError(context,
                     "this process has used a GPU, which no process forked from it can use",
                     "call spawn before anything uses a GPU, or have ranks run the program again "
                     "(StartMethod::spawn, from main), or start the program with `lockstep run`");
  }
  const int count = lasting_new_threads();
  if (count == 0) return;
  throw UsageError(
      context,
      fmt::format(
          "this process has {} thread{} that it did not have when it was loaded, and a rank "
          "forked from it would hang in libtorch",
          count, count == 1 ? "" : "s"),
      "call spawn before anything else uses libtorch, or keep to one thread (set OMP_NUM_THREADS=1 "
      "and OPENBLAS_NUM_THREADS=1), or have ranks run the program again (StartMethod::spawn, from "
      "main), or start the program with `lockstep run`");
}

std::chrono::milliseconds time_since_load() {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                      at_load().time);
}

std::string why_no_rerun() {
  if (in_rank() || pending_start() != nullptr) return "this process is a rank itself";
  if (::getpid() != at_load().pid) return "this process was forked from the program's";
  if (::access("/proc/self/exe", X_OK) != 0) return "/proc is not mounted";
  return "";
}

void rerun_program(const RankStart& start, const UniqueFd& last_words) {
  ::fcntl(last_words.get(), F_SETFD, 0);
  const int file = inherited_file(pack_start(start, last_words.get()));
  std::vector<std::string> arguments = at_load().arguments;
  if (arguments.empty()) fail("/proc/self/cmdline");
  std::vector<std::string> variables = started_with("/proc/self/environ");
  if (variables.empty()) fail("/proc/self/environ");
  std::erase_if(variables, [](const std::string& variable) {
    return variable.starts_with(std::string(kVariable) + "=");
  });
  variables.push_back(fmt::format("{}={} {}", kVariable, ::getpid(), file));
  if (::chdir(at_load().folder.c_str()) != 0) fail(at_load().folder.c_str());
  ::execve(executable().c_str(), pointers(arguments).data(), pointers(variables).data());
  fail("execve");
}

const RankStart* pending_start() {
  const AtLoad& self = at_load();
  return self.start && self.pid == ::getpid() && !self.in_rank ? &*self.start : nullptr;
}

void end_as_rank(const std::function<void()>& function) {
  AtLoad& self = at_load();
  run_rank(self.last_words, [&] {
    enter_rank();
    pin_all_threads(self.start->cores);
    for (const auto& [name, value] : self.start->variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    if (self.start->threads) limit_threads(*self.start->threads);
    keep_freed_memory();
    function();
  });
}

void enter_rank() {
  at_load().in_rank = true;
}

bool in_rank() {
  return at_load().in_rank;
}

}  // namespace lockstep
