// SPDX-License-Identifier: BSD-3-Clause
// Thin wrappers of the epoll system calls.
#include "lockstep/core/net/epoll.h"

#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

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

}  // namespace lockstep
