// SPDX-License-Identifier: BSD-3-Clause
// Replaces the C library's socket calls by functions that count and kill.
#include "support/die_at_call.h"

#include <atomic>
#include <csignal>

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace lockstep::testing {
namespace {

std::atomic<int> calls = 0;
std::atomic<int> last_call = 0;
void (*last_words)() = nullptr;

void count_call() {
  if (++calls != last_call) return;
  if (last_words != nullptr) last_words();
  ::raise(SIGKILL);
}

// The function that the caller meant.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void die_at_call(int number, void (*words)()) {
  last_words = words;
  last_call = number;
  calls = 0;
}

int calls_made() {
  return calls;
}

}  // namespace lockstep::testing

// NOLINTBEGIN: the names are the C library's.
using lockstep::testing::count_call;
using lockstep::testing::next;

extern "C" {

int connect(int fd, const sockaddr* address, socklen_t length) {
  count_call();
  static auto* const real = next<decltype(::connect)>("connect");
  return real(fd, address, length);
}
int listen(int fd, int backlog) {
  count_call();
  static auto* const real = next<decltype(::listen)>("listen");
  return real(fd, backlog);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  count_call();
  static auto* const real = next<decltype(::accept4)>("accept4");
  return real(fd, address, length, flags);
}
ssize_t send(int fd, const void* data, size_t size, int flags) {
  count_call();
  static auto* const real = next<decltype(::send)>("send");
  return real(fd, data, size, flags);
}
ssize_t recv(int fd, void* data, size_t size, int flags) {
  count_call();
  static auto* const real = next<decltype(::recv)>("recv");
  return real(fd, data, size, flags);
}
ssize_t write(int fd, const void* data, size_t size) {
  count_call();
  static auto* const real = next<decltype(::write)>("write");
  return real(fd, data, size);
}
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  count_call();
  static auto* const real = next<decltype(::epoll_ctl)>("epoll_ctl");
  return real(epoll, operation, fd, event);
}

}  // extern "C"
// NOLINTEND
