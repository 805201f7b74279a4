// SPDX-License-Identifier: BSD-3-Clause
// Starts a program on pipes or a terminal, and reads its output.
#include "support/program.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

struct Ends {
  int reader = -1;
  int writer = -1;
};

Ends open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  return {ends[0], ends[1]};
}

Ends open_full_pipe() {
  const Ends ends = open_pipe();
  ::fcntl(ends.writer, F_SETFL, O_NONBLOCK);
  const std::array<char, 4096> bytes{};
  while (::write(ends.writer, bytes.data(), bytes.size()) > 0) {
  }
  ::fcntl(ends.writer, F_SETFL, 0);
  return ends;
}

Ends open_terminal() {
  const int reader = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (reader < 0 || ::grantpt(reader) != 0 || ::unlockpt(reader) != 0) {
    throw std::runtime_error("cannot make a terminal");
  }
  const int writer = ::open(::ptsname(reader), O_RDWR | O_NOCTTY | O_CLOEXEC);
  termios settings{};
  ::tcgetattr(writer, &settings);
  ::cfmakeraw(&settings);
  ::tcsetattr(writer, TCSANOW, &settings);
  return {reader, writer};
}

Ends open_output(Program::Output output) {
  if (output == Program::Output::terminal) return open_terminal();
  return output == Program::Output::full ? open_full_pipe() : open_pipe();
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, Output output)
    : deadline_(std::chrono::steady_clock::now() + std::chrono::seconds(100)) {
  const Ends out = open_output(output);
  const Ends err = open_pipe();
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out.writer, STDOUT_FILENO);
    ::dup2(err.writer, STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out.writer);
  ::close(err.writer);
  out_fd_ = out.reader;
  err_fd_ = err.reader;
  if (pid_ < 0) throw std::runtime_error("cannot fork");
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void Program::signal(int signal) const {
  ::kill(pid_, signal);
}

void Program::resize(int columns) const {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  if (::ioctl(out_fd_, TIOCSWINSZ, &size) != 0) throw std::runtime_error("not a terminal");
}

void Program::close_output() {
  ::close(out_fd_);
  out_fd_ = -1;
}

void Program::wait_for(const std::string& text, int times) {
  while (occurrences(out_, text) < times) {
    check_deadline();
    if (out_fd_ < 0) throw std::runtime_error("it ended without \"" + text + "\": " + out_ + err_);
    read_for(milliseconds(1000));
  }
}

int Program::wait() {
  read_all();
  return wait_unread();
}

int Program::wait_unread() {
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    check_deadline();
    ::poll(nullptr, 0, 1);
  }
  pid_ = -1;
  read_all();
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int Program::wait_signalling(int signal) {
  while (out_fd_ >= 0 || err_fd_ >= 0) {
    check_deadline();
    ::kill(pid_, signal);
    read_for(milliseconds(20));
  }
  return wait();
}

void Program::read_all() {
  while (out_fd_ >= 0 || err_fd_ >= 0) {
    check_deadline();
    read_for(milliseconds(1000));
  }
}

void Program::read_for(milliseconds span) {
  std::array<pollfd, 2> entries{{{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}}};
  if (::poll(entries.data(), entries.size(), static_cast<int>(span.count())) <= 0) return;
  if (entries[0].revents != 0) read_from(out_fd_, out_);
  if (entries[1].revents != 0) read_from(err_fd_, err_);
}

void Program::read_from(int& fd, std::string& text) {
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(fd, bytes.data(), bytes.size());
  if (count > 0) {
    text.append(bytes.data(), static_cast<std::size_t>(count));
    return;
  }
  // A terminal whose other side is closed answers with an error.
  ::close(fd);
  fd = -1;
}

void Program::check_deadline() {
  if (std::chrono::steady_clock::now() < deadline_) return;
  throw std::runtime_error("it did not get there within 100 s; out: " + out_ + " err: " + err_);
}

Ended run_to_end(const std::vector<std::string>& command) {
  Program program(command);
  const int code = program.wait();
  return {code, program.out(), program.err()};
}

int occurrences(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

std::string without_oversubscription_warning(const std::string& text) {
  std::string rest;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.find(" ranks share ") == std::string::npos) rest += line + "\n";
  }
  return rest;
}

}  // namespace lockstep::testing
