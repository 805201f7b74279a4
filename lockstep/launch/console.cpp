// SPDX-License-Identifier: BSD-3-Clause
// Queues text, and writes it in pieces that a ready descriptor takes without blocking.
#include "lockstep/launch/console.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/environment.h"

namespace lockstep {
namespace {

// Also erases the lines below: a terminal that became narrower may have wrapped the status line.
constexpr const char* kEraseStatus = "\r\033[J";

int descriptor_of(OutputStream stream) {
  return stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO;
}

bool understands_escapes(OutputStream stream) {
  return ::isatty(descriptor_of(stream)) == 1 && environment("TERM") != "dumb";
}

bool same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

std::string LineMixer::add(int writer, std::string_view prefix, std::string_view part,
                           bool ends_line) {
  std::string bytes;
  if (writer != writer_) {
    bytes = end_line();
    writer_ = writer;
    has_prefix_ = false;
    needs_prefix_ = true;
  }
  const auto add_prefix = [&] {
    bytes += prefix;
    has_prefix_ = true;
    needs_prefix_ = false;
  };
  while (!part.empty()) {
    const std::string_view text = part.substr(0, part.find('\r'));
    if (!text.empty() && needs_prefix_) add_prefix();
    bytes += text;
    part.remove_prefix(text.size());
    if (part.empty()) break;
    bytes += '\r';
    needs_prefix_ = true;
    part.remove_prefix(1);
  }
  if (!ends_line) return bytes;
  if (!has_prefix_) add_prefix();
  return bytes + end_line();
}

std::string LineMixer::end_line() {
  return std::exchange(writer_, kNone) == kNone ? "" : "\n";
}

Console::Console() : same_target_(same_file(STDOUT_FILENO, STDERR_FILENO)) {}

void Console::add(OutputStream stream, const std::string& text) {
  add_text(stream, mixer(stream).end_line() + text);
}

void Console::add_part(OutputStream stream, int writer, std::string_view prefix,
                       std::string_view part, bool ends_line) {
  add_text(stream, mixer(stream).add(writer, prefix, part, ends_line));
}

void Console::add_text(OutputStream stream, const std::string& text) {
  const int fd = descriptor_of(stream);
  // The other stream's text may go to the same terminal; text for a file leaves the terminal alone.
  const bool erase = drawn_ && (fd == status_fd_ || ::isatty(fd) == 1);
  enqueue(fd, erase ? kEraseStatus + text : text);
  if (!erase) return;
  drawn_ = false;
  redraw_ = true;
}

void Console::set_status(OutputStream stream, const std::string& text) {
  status_fd_ = descriptor_of(stream);
  status_ = text;
  redraw_ = !text.empty();
  if (text.empty() && std::exchange(drawn_, false)) enqueue(status_fd_, kEraseStatus);
}

void Console::enqueue(int fd, const std::string& text) {
  waiting_bytes_ += text.size();
  // Joins short lines into one write, but not into more than a pipe takes whole.
  if (!queue_.empty() && queue_.back().fd == fd &&
      queue_.back().bytes.size() + text.size() <= PIPE_BUF) {
    queue_.back().bytes += text;
  } else {
    queue_.push_back({fd, text});
  }
}

int Console::descriptor() const {
  return queue_.empty() ? status_fd_ : queue_.front().fd;
}

void Console::discard() {
  queue_.clear();
  redraw_ = false;
  written_ = 0;
  waiting_bytes_ = 0;
}

bool Console::write_some() {
  // A slow terminal gets the newest status only.
  if (redraw_ && waiting_bytes_ <= PIPE_BUF) {
    // Written over the old one, whose rest is then erased: an empty line in between would flicker.
    // The cursor returns to the line's start, where it stays if the terminal wraps the line.
    enqueue(status_fd_, "\r" + status_ + "\033[J\r");
    drawn_ = true;
    redraw_ = false;
  }
  while (!queue_.empty()) {
    const Text& text = queue_.front();
    // Other programs share the descriptor, so it must not be made non-blocking. A ready descriptor
    // takes PIPE_BUF bytes.
    pollfd entry{text.fd, POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) return true;
    const std::size_t length = std::min<std::size_t>(text.bytes.size() - written_, PIPE_BUF);
    const ssize_t count = ::write(text.fd, text.bytes.data() + written_, length);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    int& error = errors_[text.fd == STDERR_FILENO];
    if (count < 0 && error == 0) error = errno;
    if (count < 0 && errno == EPIPE) {
      discard();
      return false;
    }
    const std::size_t done =
        count < 0 ? text.bytes.size() - written_ : static_cast<std::size_t>(count);
    written_ += done;
    waiting_bytes_ -= done;
    if (written_ == text.bytes.size()) {
      queue_.pop_front();
      written_ = 0;
    }
  }
  return true;
}

bool can_show_status(OutputStream stream) {
  return understands_escapes(stream) && !environment("LOCKSTEP_LAUNCHER");
}

int terminal_columns(OutputStream stream) {
  winsize size{};
  if (::ioctl(descriptor_of(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

bool coloured(OutputStream stream) {
  return understands_escapes(stream) && !environment("NO_COLOR");
}

bool write_last(OutputStream stream, std::string text) {
  Console console;
  console.add(stream, text);
  const Deadline deadline = Deadline::after(kReaderGrace);
  while (console.write_some() && !console.empty() && !deadline.passed()) {
    pollfd entry{console.descriptor(), POLLOUT, 0};
    ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
  }
  return console.empty() && console.error(stream) == 0;
}

}  // namespace lockstep
