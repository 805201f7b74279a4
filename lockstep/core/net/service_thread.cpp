// SPDX-License-Identifier: BSD-3-Clause
// Starts threads with all signals blocked; a forked child does not join them.
#include "lockstep/core/net/service_thread.h"

#include <cerrno>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// A thread inherits the signal mask of the thread that starts it.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

std::thread start(std::function<void()> body) try {
  const NoSignals no_signals;
  return std::thread(std::move(body));
} catch (const std::system_error& error) {
  throw BackendError(fmt::format("cannot start a thread: {}", error.what()));
}

}  // namespace

ServiceThread::ServiceThread(std::function<void(int stop)> body)
    : owner_(::getpid()),
      stop_(std::make_shared<UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  if (!*stop_) throw BackendError(fmt::format("cannot make an eventfd: {}", reason_of(errno)));
  thread_ = start([body = std::move(body), stop = stop_] { body(stop->get()); });
}

ServiceThread::~ServiceThread() {
  if (!thread_.joinable()) return;
  if (::getpid() != owner_) {
    static_cast<void>(new std::thread(std::move(thread_)));
    return;
  }
  ::eventfd_write(stop_->get(), 1);
  thread_.join();
}

void ServiceThread::leave() {
  thread_.detach();
}

void leave_to_thread(std::function<void()> body) {
  start(std::move(body)).detach();
}

}  // namespace lockstep
