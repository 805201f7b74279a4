// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/launch/janitor.h"

#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/launch/signal_watch.h"

namespace lockstep {
namespace {

constexpr pid_t farewell = 0;
constexpr int farewell_timeout_ms = 2000;

// Keeps nothing of the launcher's open but the pipe: a shell would wait for its output to close.
void keep_only(int pipe) {
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) {
    if (null >= 0) {
      ::dup2(null, fd);
    } else if (fd != pipe) {
      ::close(fd);
    }
  }
  const auto kept = static_cast<unsigned>(pipe);
  if (kept > 3) ::close_range(3, kept - 1, 0);
  ::close_range(kept + 1, ~0U, 0);
}

// Runs in a child of a process that may have threads: it allocates nothing.
[[noreturn]] void tidy(int pipe, std::vector<pid_t>& groups, const char* socket,
                       const char* folder) {
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-tidy");
  keep_only(pipe);
  while (true) {
    pid_t group = 0;
    const ssize_t count = ::read(pipe, &group, sizeof group);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof group) break;
    if (group == farewell) ::_exit(0);
    if (groups.size() < groups.capacity()) groups.push_back(group);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  ::unlink(socket);
  ::rmdir(folder);
  ::_exit(0);
}

}  // namespace

Janitor::Janitor(int ranks, const std::string& store_socket, const std::string& store_folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw BackendError(fmt::format("cannot make a pipe: {}", reason_of(errno)));
  }
  UniqueFd reader(ends[0]);
  pipe_.reset(ends[1]);
  std::vector<pid_t> groups;
  groups.reserve(static_cast<std::size_t>(ranks));
  // The child keeps them blocked for good.
  SignalsBlocked blocked;
  pid_ = ::fork();
  if (pid_ < 0) throw BackendError(fmt::format("cannot fork: {}", reason_of(errno)));
  if (pid_ == 0) {
    ::close(pipe_.get());
    tidy(reader.get(), groups, store_socket.c_str(), store_folder.c_str());
  }
}

void Janitor::add(pid_t group) {
  while (::write(pipe_.get(), &group, sizeof group) < 0 && errno == EINTR) {
  }
}

Janitor::~Janitor() {
  if (!pipe_) return;
  // If somebody killed the janitor, nobody reads this: SIGPIPE is ignored while ranks are watched.
  add(farewell);
  pipe_.reset();
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  pollfd entry{process.get(), POLLIN, 0};
  // Somebody may have stopped it.
  if (::poll(&entry, 1, farewell_timeout_ms) <= 0) ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Janitor::leave_to_parent() {
  pipe_.reset();
}

}  // namespace lockstep
