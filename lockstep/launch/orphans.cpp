// SPDX-License-Identifier: BSD-3-Clause
// Lists this process's children from /proc, and signals them until they have ended.
#include "lockstep/launch/orphans.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

// The parent from /proc/PID/stat: the second word after the name, which is in parentheses and may
// contain anything. 0 if the process is gone.
pid_t parent_of(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > text.size()) return 0;
  pid_t parent = 0;
  std::from_chars(text.data() + name_end + 4, text.data() + text.size(), parent);
  return parent;
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  const std::string self = std::to_string(::getpid());
  if (std::ifstream file("/proc/self/task/" + self + "/children"); file) {
    for (pid_t pid = 0; file >> pid;) found.push_back(pid);
    return found;
  }
  // For kernels built without that file.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (wrong != std::errc() || end != name.data() + name.size()) continue;
    if (parent_of(entry.path()) == ::getpid()) found.push_back(pid);
  }
  return found;
}

// Waits until one of them ends, until the deadline, or for 100 ms, so that new orphans are seen.
void wait_for_one(const std::vector<pid_t>& processes, const Deadline& deadline) {
  std::vector<UniqueFd> descriptors;
  std::vector<pollfd> entries;
  for (const pid_t pid : processes) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!fd) continue;
    entries.push_back({fd.get(), POLLIN, 0});
    descriptors.push_back(std::move(fd));
  }
  const auto span = std::min(deadline.remaining(), std::chrono::milliseconds(100));
  ::poll(entries.data(), entries.size(), static_cast<int>(span.count()));
}

}  // namespace

AdoptsOrphans::AdoptsOrphans() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

AdoptsOrphans::~AdoptsOrphans() {
  ::prctl(PR_SET_CHILD_SUBREAPER, before_);
}

bool children_can_be_seen() {
  return ::access("/proc/self/stat", R_OK) == 0;
}

void end_children(std::chrono::milliseconds grace) {
  const Deadline polite = Deadline::after(grace);
  const Deadline last = Deadline::after(grace + kKillTimeout);
  std::set<pid_t> asked;
  while (!last.passed()) {
    std::vector<pid_t> left;
    for (const pid_t pid : children()) {
      if (::waitpid(pid, nullptr, WNOHANG) == 0) left.push_back(pid);
    }
    if (left.empty()) return;
    for (const pid_t pid : left) {
      if (polite.passed()) {
        ::kill(pid, SIGKILL);
      } else if (asked.insert(pid).second) {
        ::kill(pid, SIGTERM);
      }
    }
    wait_for_one(left, polite.passed() ? last : polite);
  }
}

void reap_children(const std::set<pid_t>& except) {
  for (const pid_t pid : children()) {
    if (!except.contains(pid)) ::waitpid(pid, nullptr, WNOHANG);
  }
}

}  // namespace lockstep
