// SPDX-License-Identifier: BSD-3-Clause
// Reads processes, children and descriptors from /proc.
#include "support/process_table.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <poll.h>
#include <unistd.h>

namespace lockstep::testing {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void for_each_environment(const std::function<void(pid_t, const std::string&)>& function) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    // Empty for a zombie.
    if (pid != ::getpid()) function(pid, contents(entry.path() / "environ"));
  }
}

}  // namespace

std::string unique_mark() {
  static int count = 0;
  return "lockstep-mark-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + ".";
}

int count_marked(const std::string& mark) {
  int count = 0;
  for_each_environment([&](pid_t, const std::string& environment) {
    if (environment.find(mark) != std::string::npos) ++count;
  });
  return count;
}

std::vector<pid_t> processes_with(const std::vector<std::string>& variables) {
  std::vector<pid_t> found;
  for_each_environment([&](pid_t pid, const std::string& environment) {
    const bool all = std::ranges::all_of(variables, [&](const std::string& variable) {
      return ('\0' + environment).find('\0' + variable + '\0') != std::string::npos;
    });
    if (all) found.push_back(pid);
  });
  return found;
}

std::vector<pid_t> children_of(pid_t parent) {
  const std::string pid = std::to_string(parent);
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  // The name, in parentheses, may hold anything.
  const auto name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

std::chrono::nanoseconds waited_for_a_core(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/schedstat");
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  file >> ran >> waited;
  return std::chrono::nanoseconds(waited);
}

int count_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  // But for the one that reads the list.
  return static_cast<int>(std::distance(begin(entries), end(entries))) - 1;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds span) {
  const auto end = std::chrono::steady_clock::now() + span;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

}  // namespace lockstep::testing
