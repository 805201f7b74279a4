// SPDX-License-Identifier: BSD-3-Clause
// Opens a rank's channels, and sets up its process group, streams and last words.
#include "lockstep/launch/rank_process.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <iostream>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/launch/stack_trace.h"

namespace lockstep {
namespace {

// A channel that a rank writes to and its launcher reads. Both ends close on exec. Only the reader
// is non-blocking: a rank's own output blocks, as a program expects.
struct OutputChannel {
  UniqueFd reader;
  UniqueFd writer;
};

// BackendError if no descriptor is left.
OutputChannel open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw BackendError(fmt::format("cannot make a pipe: {}", reason_of(errno)));
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A pseudo-terminal, so that a program's stdio writes each line when it is complete; into a pipe it
// would write in blocks. It is in raw mode, so that bytes pass unchanged, and as wide as this
// process's own terminal, if it has one. At the end, reading fails with EIO instead of returning 0.
// nullopt, with the reason in errno, if the system has no pseudo-terminals or none is left.
std::optional<OutputChannel> open_terminal() {
  OutputChannel channel{UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)), {}};
  if (!channel.reader || ::unlockpt(channel.reader.get()) != 0) return std::nullopt;
  // Opened through its master, not by name: a container may have no /dev/pts.
  channel.writer.reset(::ioctl(channel.reader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!channel.writer || ::tcgetattr(channel.writer.get(), &settings) != 0) return std::nullopt;
  ::cfmakeraw(&settings);
  if (::tcsetattr(channel.writer.get(), TCSANOW, &settings) != 0) return std::nullopt;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    ::ioctl(channel.writer.get(), TIOCSWINSZ, &size);
  }
  return channel;
}

// The rank's stdout is line-buffered; in the process that forked it, stdout may be block-buffered.
std::array<char, BUFSIZ> line_buffer;

// Best effort: words that do not fit into the pipe are cut.
[[noreturn]] void end_with(const UniqueFd& words, int exit_code, const std::string& reason) {
  ::fcntl(words.get(), F_SETFL, O_NONBLOCK);
  [[maybe_unused]] const ssize_t written = ::write(words.get(), reason.data(), reason.size());
  flush_streams();
  // Not exit(), which would run the launcher's destructors in the rank.
  ::_exit(exit_code);
}

void become_rank(pid_t parent, const UniqueFd& output, const UniqueFd& error_output) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before prctl took effect.
  if (::getppid() != parent) ::_exit(1);
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // Without /dev/null, a pipe without a writer: reading it also ends at once.
  if (!null) null = open_pipe().reader;
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(error_output.get(), STDERR_FILENO);
  std::setvbuf(stdout, line_buffer.data(), _IOLBF, line_buffer.size());
}

}  // namespace

void flush_streams() {
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

void run_rank(const UniqueFd& words, const std::function<void()>& body) {
  try {
    body();
  } catch (const RankExit& exit) {
    end_with(words, exit.exit_code, exit.reason);
  } catch (const std::exception& error) {
    end_with(words, 1, without_stack_trace(error.what()));
  } catch (...) {
    end_with(words, 1, "an exception that is not derived from std::exception");
  }
  end_with(words, 0, "");
}

StartedRank fork_rank(int rank, const std::function<void(const UniqueFd& last_words)>& body) {
  std::optional<OutputChannel> terminal = open_terminal();
  const int terminal_error = terminal ? 0 : errno;
  OutputChannel output = terminal ? std::move(*terminal) : open_pipe();
  OutputChannel error_output = open_pipe();
  OutputChannel words = open_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw BackendError(fmt::format("cannot fork: {}", reason_of(errno)));
  if (pid == 0) {
    become_rank(parent, output.writer, error_output.writer);
    for (OutputChannel* channel : {&output, &error_output}) *channel = {};
    words.reader.reset();
    run_rank(words.writer, [&] { body(words.writer); });
  }
  // Parent and child both do this, so that neither can be too early.
  ::setpgid(pid, pid);
  return {.rank = rank,
          .pid = pid,
          .terminal_error = terminal_error,
          .output = std::move(output.reader),
          .error_output = std::move(error_output.reader),
          .last_words = std::move(words.reader)};
}

void RankProcess::take(const RankChange& change) {
  const bool stopped = change.code == CLD_STOPPED;
  stopped_by_ = stopped ? change.status : 0;
  if (stopped || change.code == CLD_CONTINUED) return;
  status_ = ExitStatus::from(change.code, change.status);
}

void RankProcess::signal(int signal) const {
  if (pid() < 0) return;
  // A program may have moved to another group and left its own empty.
  if (::kill(-pid(), signal) != 0) ::kill(pid(), signal);
}

std::string RankProcess::last_words() {
  std::string text;
  std::array<char, 4096> bytes;
  for (ssize_t count = 0;
       (count = ::read(started_.last_words.get(), bytes.data(), bytes.size())) > 0;) {
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace lockstep
