// SPDX-License-Identifier: BSD-3-Clause
// Accepts in small batches, and stops watching the socket when descriptors run out.
#include "lockstep/core/net/listener.h"

#include <cerrno>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// A larger batch would accept too many connections before the slow ones are closed.
constexpr std::size_t kAtOnce = 32;

}  // namespace

Listener::Listener(UniqueFd socket) : socket_(std::move(socket)) {
  epoll_.add(socket_.get(), EPOLLIN);
  watched_ = true;
}

void Listener::watch(bool on) {
  if (on == watched_) return;
  if (!on) {
    epoll_.remove(socket_.get());
    watched_ = false;
  } else if (epoll_.try_add(socket_.get(), EPOLLIN)) {
    watched_ = true;
  }
}

std::vector<UniqueFd> Listener::accept() {
  std::vector<UniqueFd> connections;
  if (!socket_) return connections;
  watch(true);
  while (connections.size() < kAtOnce) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      error_ = 0;
      connections.push_back(std::move(connection));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      if (errno != EAGAIN) {
        error_ = errno;
        watch(false);
      }
      break;
    }
  }
  return connections;
}

std::string Listener::limit_met() const {
  return error_ == 0 ? "" : reason_of(error_);
}

void Listener::close() {
  if (socket_) watch(false);
  socket_.reset();
}

}  // namespace lockstep
