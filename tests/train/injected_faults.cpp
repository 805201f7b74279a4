// SPDX-License-Identifier: BSD-3-Clause
// Real signals and real files.
#include "tests/train/injected_faults.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"

namespace lockstep::testing {
namespace {

constexpr const char* kFiller = "filler";

void take_all_memory() {
  std::vector<std::vector<char>> taken;
  while (true) taken.emplace_back(16 << 20, 'x');
}

void kill_after(std::chrono::microseconds span) {
  std::thread([span] {
    std::this_thread::sleep_for(span);
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

}  // namespace

void inject_fault(const std::string& how) {
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "segv") ::kill(::getpid(), SIGSEGV);
  if (how == "exit") std::exit(3);
  if (how == "throw") throw std::runtime_error("the data of this rank are damaged");
  if (how == "memory") take_all_memory();
  if (how == "stop") {
    ::kill(::getpid(), SIGSTOP);
    return;
  }
  if (const std::string prefix = "kill_after_"; how.starts_with(prefix)) {
    return kill_after(std::chrono::microseconds(std::stoi(how.substr(prefix.size()))));
  }
  if (how == "deaf") {
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
  } else if (how != "hang") {
    throw std::invalid_argument("what is " + how + "?");
  }
  while (true) ::pause();
}

void flip_bit(const at::Tensor& values) {
  auto* const bits = reinterpret_cast<std::uint32_t*>(values.data_ptr<float>());
  bits[values.numel() / 2] ^= 0x8000'0000;
}

void fill_disk(const std::filesystem::path& folder) {
  std::ofstream filler(folder / fmt::format("{}-{}", kFiller, ::getpid()),
                       std::ios::app | std::ios::binary);
  const std::array<char, 4096> page{};
  while (filler.write(page.data(), page.size()).flush()) {
  }
}

void empty_disk(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(kFiller)) continue;
    std::error_code removed_by_another;
    std::filesystem::remove(entry.path(), removed_by_another);
  }
}

void wait_for_file(const std::filesystem::path& path) {
  const Deadline deadline = Deadline::after(std::chrono::minutes(1));
  while (!std::filesystem::exists(path)) {
    if (deadline.passed()) throw std::runtime_error("there is no " + path.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void append_line(const std::filesystem::path& path, const std::string& line) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string whole = line + "\n";
  const bool written =
      file >= 0 && ::write(file, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
  if (file >= 0) ::close(file);
  if (!written) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace lockstep::testing
