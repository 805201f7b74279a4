// SPDX-License-Identifier: BSD-3-Clause
// The handler, which calls only functions that a handler may call.
#include "tools/cli/ending_signals.h"

#include <array>
#include <climits>
#include <csignal>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

namespace lockstep::cli {
namespace {

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::string_view kBeforeCheckpoint = "--resume would continue from ";
constexpr std::string_view kNoCheckpoint =
    "there is no checkpoint yet, so that --resume would start from the beginning";
// CheckpointFolder's link to its newest checkpoint.
constexpr const char* kNewest = "latest";

volatile std::sig_atomic_t erased_fd = -1;
// For the handler; empty if it shall say nothing.
std::string folder_of_checkpoints;
std::string link_to_newest;

void write_text(int fd, std::string_view text) {
  [[maybe_unused]] const ssize_t count = ::write(fd, text.data(), text.size());
}

// The default action follows, since the signal is blocked until this returns.
void say_and_end(int signal) {
  if (erased_fd >= 0) write_text(erased_fd, "\r\033[J");
  if (!folder_of_checkpoints.empty()) {
    std::array<char, NAME_MAX + 1> name;
    const ssize_t length = ::readlink(link_to_newest.c_str(), name.data(), name.size());
    write_text(STDERR_FILENO, "lockstep train: stopped; ");
    if (length > 0) {
      write_text(STDERR_FILENO, kBeforeCheckpoint);
      write_text(STDERR_FILENO, folder_of_checkpoints);
      write_text(STDERR_FILENO, "/");
      write_text(STDERR_FILENO, {name.data(), static_cast<std::size_t>(length)});
    } else {
      write_text(STDERR_FILENO, kNoCheckpoint);
    }
    write_text(STDERR_FILENO, "\n");
  }
  ::raise(signal);
}

void replace_action(void (*from)(int), void (*to)(int)) {
  for (const int signal : kEndingSignals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != from) continue;
    action.sa_handler = to;
    action.sa_flags = to == SIG_DFL ? 0 : static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

EndingSignals::EndingSignals(const std::optional<std::filesystem::path>& folder) {
  folder_of_checkpoints = folder ? folder->string() : "";
  link_to_newest = folder ? (*folder / kNewest).string() : "";
  replace_action(SIG_DFL, say_and_end);
}

EndingSignals::~EndingSignals() {
  replace_action(say_and_end, SIG_DFL);
}

void erase_at_end(int terminal_fd) {
  erased_fd = terminal_fd;
}

std::string resume_note(const std::filesystem::path& folder) {
  std::error_code error;
  const auto newest = std::filesystem::read_symlink(folder / kNewest, error);
  if (error) return std::string(kNoCheckpoint);
  return fmt::format("{}{}", kBeforeCheckpoint, (folder / newest).string());
}

}  // namespace lockstep::cli
