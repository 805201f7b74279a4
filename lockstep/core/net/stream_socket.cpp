// SPDX-License-Identifier: BSD-3-Clause
// Retries interrupted socket calls, and waits in poll() up to the deadline.
#include "lockstep/core/net/stream_socket.h"

#include <cerrno>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

void wait_for(int fd, short events, const Deadline& deadline, const char* what) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) {
      throw BackendError(fmt::format("{}: {}", what, reason_of(errno)));
    }
    if (deadline.passed()) {
      throw TimeoutError(
          fmt::format("{}: nothing happened for {} ms", what, deadline.span().count()));
    }
  }
}

}  // namespace

ssize_t transfer(int socket, short events, const Deadline& deadline, const char* what,
                 const std::function<ssize_t()>& call) {
  while (true) {
    const ssize_t count = call();
    if (count > 0) return count;
    if (count == 0 || errno == ECONNRESET || errno == EPIPE) {
      throw ConnectionClosed(fmt::format("{}: the other end closed the connection", what));
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw BackendError(fmt::format("{}: {}", what, reason_of(errno)));
    wait_for(socket, events, deadline, what);
  }
}

UniqueFd accept_connection(int listener, const Deadline& deadline) {
  while (true) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) throw BackendError(fmt::format("accept: {}", reason_of(errno)));
    wait_for(listener, POLLIN, deadline, "waiting for a connection");
  }
}

void send_all(int socket, std::span<const std::byte> data, const Deadline& deadline) {
  while (!data.empty()) {
    const ssize_t sent = transfer(socket, POLLOUT, deadline, "sending", [&] {
      return ::send(socket, data.data(), data.size(), MSG_NOSIGNAL);
    });
    data = data.subspan(static_cast<std::size_t>(sent));
  }
}

void receive_all(int socket, std::span<std::byte> data, const Deadline& deadline) {
  while (!data.empty()) {
    const ssize_t received = transfer(socket, POLLIN, deadline, "receiving",
                                      [&] { return ::recv(socket, data.data(), data.size(), 0); });
    data = data.subspan(static_cast<std::size_t>(received));
  }
}

}  // namespace lockstep
