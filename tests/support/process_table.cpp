// SPDX-License-Identifier: BSD-3-Clause
#include "support/process_table.h"

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

}  // namespace

std::string unique_mark() {
  static int count = 0;
  return "lockstep-mark-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + ".";
}

int count_marked(const std::string& mark) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (name == std::to_string(::getpid())) continue;
    // Empty for a zombie.
    if (contents(entry.path() / "environ").find(mark) != std::string::npos) ++count;
  }
  return count;
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
