// SPDX-License-Identifier: BSD-3-Clause
// Forks the keeper, receives its messages, and ends it.
#include "lockstep/launch/keeper_client.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/system_error.h"
#include "lockstep/launch/orphans.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kStartTimeout{30};
// How long the keeper may take to end, beyond its wait for processes that it has killed.
constexpr std::chrono::seconds kEndTimeout{2};
// How often to check whether the keeper has ended, if there is no pidfd.
constexpr std::chrono::milliseconds kKeeperPollInterval{10};

// Keeps the descriptor clear of the standard streams, which the keeper replaces.
UniqueFd above_standard_streams(int fd) {
  const UniqueFd low(fd);
  UniqueFd high(::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!high) throw BackendError("cannot reach the ranks' keeper: " + reason_of(errno));
  return high;
}

}  // namespace

KeeperClient::KeeperClient(const KeeperConfig& config, const MemoryKills& memory_kills)
    : memory_kills_(memory_kills) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw BackendError(fmt::format("cannot make a pair of sockets: {}", reason_of(errno)));
  }
  socket_.reset(ends[0]);
  UniqueFd keeper_end = above_standard_streams(ends[1]);
  const pid_t launcher = ::getpid();
  flush_streams();
  pid_ = ::fork();
  if (pid_ < 0) throw BackendError(fmt::format("cannot fork: {}", reason_of(errno)));
  if (pid_ == 0) {
    socket_.reset();
    run_keeper(config, launcher, std::move(keeper_end), memory_kills);
  }
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

StartedRank KeeperClient::next_started() {
  const Deadline deadline = Deadline::after(kStartTimeout);
  while (true) {
    pollfd entry{socket_.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
    try {
      if (auto message = receive_from_keeper(socket_.get())) {
        if (auto* started = std::get_if<StartedRank>(&*message)) return std::move(*started);
        throw BackendError(std::get<StartFailed>(*message).what);
      }
    } catch (const ConnectionClosed&) {
      throw_lost();
    }
    if (!deadline.passed()) continue;
    throw BackendError(fmt::format(
        "the keeper of the ranks (pid {}) started none for {} s; was it stopped (kill -STOP)?",
        pid_, kStartTimeout.count()));
  }
}

std::optional<KeeperMessage> KeeperClient::next_message() {
  try {
    return receive_from_keeper(socket_.get());
  } catch (const ConnectionClosed&) {
    throw_lost();
  }
}

void KeeperClient::keep_awake() {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG);
  if (info.si_pid == pid_) ::kill(pid_, SIGCONT);
}

std::optional<ExitStatus> KeeperClient::await_end(const Deadline& deadline) const {
  while (true) {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid == pid_) return ExitStatus::from(info.si_code, info.si_status);
    if (deadline.passed()) return std::nullopt;
    pollfd entry{pidfd_.get(), POLLIN, 0};
    const auto timeout = pidfd_ ? deadline.remaining() : kKeeperPollInterval;
    ::poll(&entry, 1, static_cast<int>(timeout.count()));
  }
}

void KeeperClient::throw_lost() {
  const auto status = await_end(Deadline::after(kEndTimeout));
  const std::string how =
      status ? status->words(memory_kills_) : "its connection ended before it did";
  throw KeeperLost(fmt::format(
      "the keeper of the ranks (pid {}), which starts and watches them, was lost, and they died "
      "with it: {}",
      pid_, how));
}

void KeeperClient::end(std::chrono::milliseconds grace) {
  if (pid_ < 0) return;
  send_to_keeper(socket_.get(), EndRanks{grace});
  // The keeper may be stopped (SIGSTOP). The ranks die with it.
  if (!await_end(Deadline::after(grace + kKillTimeout + kEndTimeout))) {
    ::kill(pid_, SIGKILL);
  }
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  pidfd_.reset();
  socket_.reset();
}

KeeperClient::~KeeperClient() {
  end(std::chrono::milliseconds(0));
}

}  // namespace lockstep
