// SPDX-License-Identifier: BSD-3-Clause
// Wraps epoll; accepts in small batches, and stops watching the socket when descriptors run out.
#include "lockstep/core/net/listener.h"

#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// A larger batch would accept too many connections before the slow ones are closed.
constexpr std::size_t kAtOnce = 32;

int control(int epoll, int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

Epoll::Epoll() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw BackendError(fmt::format("cannot make an epoll: {}", reason_of(errno)));
}

bool Epoll::try_add(int fd, std::uint32_t events) {
  return control(fd_.get(), EPOLL_CTL_ADD, fd, events) == 0;
}

void Epoll::add(int fd, std::uint32_t events) {
  if (!try_add(fd, events)) {
    throw BackendError(fmt::format("cannot watch a socket: {}", reason_of(errno)));
  }
}

void Epoll::change(int fd, std::uint32_t events) {
  control(fd_.get(), EPOLL_CTL_MOD, fd, events);
}

void Epoll::remove(int fd) {
  control(fd_.get(), EPOLL_CTL_DEL, fd, 0);
}

std::vector<int> Epoll::ready() const {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(fd_.get(), events.data(), events.size(), 0);
  std::vector<int> fds;
  for (int i = 0; i < count; ++i) fds.push_back(events[static_cast<std::size_t>(i)].data.fd);
  return fds;
}

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
