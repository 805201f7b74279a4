// SPDX-License-Identifier: BSD-3-Clause
// Queues text, and writes it in pieces that a ready descriptor takes without blocking.
#include "lockstep/launch/console.h"

#include <algorithm>
#include <cerrno>

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"

namespace lockstep {

void Console::add(OutputStream stream, const std::string& text) {
  waiting_bytes_ += text.size();
  const int fd = stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO;
  // Joins short lines into one write, but not into more than a pipe takes whole.
  if (!queue_.empty() && queue_.back().fd == fd &&
      queue_.back().bytes.size() + text.size() <= PIPE_BUF) {
    queue_.back().bytes += text;
  } else {
    queue_.push_back({fd, text});
  }
}

int Console::descriptor() const {
  return queue_.front().fd;
}

void Console::discard() {
  queue_.clear();
  written_ = 0;
  waiting_bytes_ = 0;
}

bool Console::write_some() {
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
