// SPDX-License-Identifier: BSD-3-Clause
// Tells processes apart by start time, boot id and PID namespace from /proc.
#include "lockstep/core/process/process_identity.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr const char* kUnknown = "-";

struct Stat {
  char state = 0;
  int threads = 0;
  std::string started;
};

std::optional<Stat> stat_of(pid_t pid) {
  std::string line;
  if (!std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line)) return std::nullopt;
  // The name before this may contain spaces and parentheses.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 20; ++field) fields >> skipped;
  fields >> stat.threads >> skipped >> stat.started;
  if (!fields) return std::nullopt;
  return stat;
}

std::string this_machine() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code error;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  return boot.empty() || error ? "" : fmt::format("{}/{}", boot, space.string());
}

}  // namespace

ProcessIdentity ProcessIdentity::own() {
  const auto stat = stat_of(::getpid());
  if (!stat) return {.pid = ::getpid()};
  return {.pid = ::getpid(), .started = stat->started, .machine = this_machine()};
}

std::string ProcessIdentity::as_text() const {
  if (machine.empty()) return fmt::format("{} {} {}", pid, kUnknown, kUnknown);
  return fmt::format("{} {} {}", pid, started, machine);
}

ProcessIdentity ProcessIdentity::from_text(const std::string& text) {
  std::istringstream fields(text);
  ProcessIdentity process;
  fields >> process.pid >> process.started >> process.machine;
  return process.machine == kUnknown ? ProcessIdentity{.pid = process.pid} : process;
}

bool ProcessIdentity::has_ended() const {
  if (machine.empty() || machine != this_machine()) return false;
  const auto stat = stat_of(pid);
  // /proc may hide other users' processes.
  if (!stat) return ::kill(pid, 0) != 0 && errno == ESRCH;
  // A process's first thread may end before the others.
  const bool dead = (stat->state == 'Z' || stat->state == 'X') && stat->threads <= 1;
  return dead || stat->started != started;
}

}  // namespace lockstep
