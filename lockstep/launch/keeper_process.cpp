// SPDX-License-Identifier: BSD-3-Clause
// Forks ranks, reports how their states change, and cleans up after a killed launcher.
#include "lockstep/launch/keeper_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/keeper_messages.h"
#include "lockstep/launch/orphans.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {
namespace {

constexpr int kMemoryPollInterval = static_cast<int>(MemoryKills::kTimeToEnd.count()) / 2;

class Keeper {
 public:
  Keeper(const KeeperConfig& config, pid_t launcher, UniqueFd socket,
         const MemoryKills& memory_kills)
      : config_(config),
        launcher_(launcher),
        socket_(std::move(socket)),
        memory_kills_(memory_kills) {}

  void start();
  // Returns when the launcher is gone or has told the keeper to end.
  void watch();

 private:
  void open_changes();
  void start_rank(const PlacedRank& start);
  void start_further_rank(const PlacedRank& start);
  void leave_standard_streams();
  void close_unneeded_descriptors();
  void report_changes();
  void clean_up_after_launcher();

  const KeeperConfig& config_;
  pid_t launcher_;
  UniqueFd socket_;
  MemoryKills memory_kills_;
  UniqueFd changes_;
  // By rank; -1 for one that could not be started.
  std::vector<pid_t> ranks_;
  std::set<pid_t> running_;
};

void Keeper::open_changes() {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGCHLD);
  changes_.reset(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!changes_) throw BackendError("cannot watch ranks: " + reason_of(errno));
}

void Keeper::start() {
  int rank = 0;
  try {
    open_changes();
    config_.leave_to_parent();
    for (; rank < config_.ranks; ++rank) start_rank({.rank = rank, .place = rank});
    leave_standard_streams();
    if (!config_.keep_descriptors) close_unneeded_descriptors();
  } catch (const std::exception& error) {
    send_to_launcher(socket_.get(), StartFailed{rank, error.what()});
  }
}

void Keeper::start_rank(const PlacedRank& start) {
  StartedRank started = fork_rank(start.rank, [&](const UniqueFd& last_words) {
    socket_.reset();
    changes_.reset();
    config_.body(start, last_words);
  });
  ranks_.push_back(started.pid);
  running_.insert(started.pid);
  send_to_launcher(socket_.get(), std::move(started));
}

void Keeper::start_further_rank(const PlacedRank& start) {
  try {
    start_rank(start);
  } catch (const std::exception& error) {
    ranks_.push_back(-1);
    send_to_launcher(socket_.get(), StartFailed{start.rank, error.what()});
  }
}

// If the keeper held the launcher's output open, a shell would wait for it to close.
void Keeper::leave_standard_streams() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) {
    if (null >= 0) {
      ::dup2(null, fd);
    } else {
      ::close(fd);
    }
  }
}

// Peers would wait for sockets.
void Keeper::close_unneeded_descriptors() {
  const auto [low, high] =
      std::minmax({static_cast<unsigned>(socket_.get()), static_cast<unsigned>(changes_.get())});
  constexpr unsigned kFirst = STDERR_FILENO + 1;
  if (low > kFirst) ::close_range(kFirst, low - 1, 0);
  if (high > low + 1) ::close_range(low + 1, high - 1, 0);
  ::close_range(high + 1, ~0U, 0);
}

void Keeper::watch() {
  while (true) {
    std::array<pollfd, 2> entries{{{socket_.get(), POLLIN, 0}, {changes_.get(), POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), kMemoryPollInterval);
    memory_kills_.look();
    if (entries[1].revents != 0) report_changes();
    if (entries[0].revents == 0) continue;
    const auto message = receive_from_launcher(socket_.get());
    if (!message) return clean_up_after_launcher();
    if (const auto* end = std::get_if<EndRanks>(&*message)) return end_children(end->grace);
    start_further_rank(std::get<PlacedRank>(*message));
  }
}

void Keeper::report_changes() {
  signalfd_siginfo ignored;
  while (::read(changes_.get(), &ignored, sizeof ignored) > 0) {
  }
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const pid_t pid = ranks_[static_cast<std::size_t>(rank)];
    if (!running_.contains(pid)) continue;
    const auto report = [&](int kinds) {
      siginfo_t info{};
      const int flags = kinds | WNOHANG;
      if (::waitid(P_PID, static_cast<id_t>(pid), &info, flags) != 0 || info.si_pid != pid) return;
      // A rank that has ended stays a zombie, so that no other process gets its pid, which names
      // its process group.
      if ((kinds & WEXITED) != 0) running_.erase(pid);
      send_to_launcher(socket_.get(), RankChange{rank, info.si_code, info.si_status});
    };
    report(WSTOPPED | WCONTINUED);
    report(WEXITED | WNOWAIT);
  }
  reap_children({ranks_.begin(), ranks_.end()});
}

void Keeper::clean_up_after_launcher() {
  for (const pid_t group : ranks_) {
    if (group > 0) ::kill(-group, SIGKILL);
  }
  end_children(std::chrono::milliseconds(0));
  LocalStoreServer::remove_folder(config_.store_folder);
  const std::string by_kernel = memory_kills_.recent_kill_words();
  write_last(OutputStream::err,
             fmt::format("lockstep: the launcher (pid {}) {}; its ranks were ended\n", launcher_,
                         by_kernel.empty() ? "ended before its ranks, by kill -9 or a crash"
                                           : "was " + by_kernel));
}

}  // namespace

void run_keeper(const KeeperConfig& config, pid_t launcher, UniqueFd socket,
                const MemoryKills& memory_kills) noexcept {
  // Signals to the launcher's process group, or to all processes of its name, must not reach the
  // keeper.
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "rank-keeper");
  const AdoptsOrphans adopts;
  Keeper keeper(config, launcher, std::move(socket), memory_kills);
  keeper.start();
  keeper.watch();
  ::_exit(0);
}

}  // namespace lockstep
