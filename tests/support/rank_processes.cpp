// SPDX-License-Identifier: BSD-3-Clause
// The test's side: starts the ranks, listens to them, signals them, and judges how they ended.
#include "support/rank_processes.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "support/process_table.h"
#include "support/rank_child.h"
#include "support/rank_state.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/file/remove_folder.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::testing {
namespace {

void check(bool good, const char* what) {
  if (!good)
    throw std::runtime_error(
        fmt::format("cannot start ranks: {} failed: {}", what, std::strerror(errno)));
}

// The line "State: ..." of a process: "S (sleeping)", "T (stopped)", ...
std::string process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("State:")) return line.substr(7);
  }
  return "gone";
}

}  // namespace

class RankLauncher {
 public:
  RankLauncher(int size, const LaunchOptions& options, std::source_location where)
      : size_(size),
        options_(options),
        where_(where),
        deadline_(Deadline::after(options.deadline)) {
    std::string folder =
        (std::filesystem::temp_directory_path() / "lockstep-ranks-XXXXXX").string();
    check(::mkdtemp(folder.data()) != nullptr, "mkdtemp");
    folder_ = folder;
    void* memory =
        ::mmap(nullptr, board_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    board_ = static_cast<BoardEntry*>(memory);
    outcomes_.resize(size_);
    unsent_ = options_.signals;
  }

  ~RankLauncher() {
    for (auto& child : children_) end(child);
    ::munmap(board_, board_bytes());
    remove_folder(folder_);
  }

  void start(const std::function<void(Rank&)>& function) {
    std::fflush(nullptr);  // else the ranks would print it again
    for (int rank = 0; rank < size_; ++rank) {
      int sockets[2];
      check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
      Child child;
      child.socket = UniqueFd(sockets[0]);
      UniqueFd rank_end(sockets[1]);
      child.pid = ::fork();
      check(child.pid >= 0, "fork");
      if (child.pid == 0) be_rank(rank, std::move(rank_end), function);
      board_[rank].pid = child.pid;
      child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
      children_.push_back(std::move(child));
      check(static_cast<bool>(children_.back().pidfd), "pidfd_open");
    }
    // A rank begins once every rank's pid is on the board.
    for (auto& child : children_) send_message(child.socket.get(), {MessageType::cue, -1, "", ""});
  }

  void listen() {
    while (true) {
      std::vector<pollfd> entries;
      std::vector<int> ranks;
      for (int rank = 0; rank < size_; ++rank) {
        if (children_[rank].ended) continue;
        // The end of the socket alone is not the end: the rank's own children may hold it.
        entries.push_back({children_[rank].pidfd.get(), POLLIN, 0});
        entries.push_back({children_[rank].silent ? -1 : children_[rank].socket.get(), POLLIN, 0});
        ranks.push_back(rank);
      }
      if (entries.empty() || only_stopped_ranks_left(ranks)) return;
      ::poll(entries.data(), entries.size(), static_cast<int>(deadline_.remaining().count()));
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (entries[2 * i + 1].revents != 0) hear(ranks[i]);
        if (entries[2 * i].revents != 0) reap(ranks[i]);
      }
      if (deadline_.passed()) return give_up();
    }
  }

  std::vector<RankOutcome> judge() {
    for (int rank = 0; rank < size_; ++rank) {
      Child& child = children_[rank];
      const bool planned = child.signalled || std::ranges::count(options_.may_exit, rank) > 0;
      end(child);
      RankOutcome& outcome = outcomes_[rank];
      outcome.signal = WIFSIGNALED(child.status) ? WTERMSIG(child.status) : 0;
      outcome.exit_code = WIFEXITED(child.status) ? WEXITSTATUS(child.status) : 0;
      if (gave_up_) continue;
      if (outcome.signal != 0 && !planned) {
        fail(rank, fmt::format("was killed by signal {} ({}); it was: {}", outcome.signal,
                               strsignal(outcome.signal), board_[rank].note));
      } else if (!child.said_goodbye && !planned) {
        fail(rank, fmt::format("left its process with exit code {}; it was: {}", outcome.exit_code,
                               board_[rank].note));
      }
      if (!outcome.error_type.empty() && !options_.errors_are_outcomes) {
        fail(rank, fmt::format("ended with {}: {}", outcome.error_type, outcome.error));
      }
    }
    for (const auto& signal : unsent_) {
      fail(signal.rank, fmt::format("never announced \"{}\", so signal {} was not sent", signal.cue,
                                    signal.signal));
    }
    return std::move(outcomes_);
  }

 private:
  struct Child {
    pid_t pid = -1;
    UniqueFd pidfd;
    UniqueFd socket;
    MessageReader reader;
    bool silent = false;
    bool signalled = false;
    bool stopped = false;
    bool said_goodbye = false;
    bool ended = false;
    int status = 0;
  };

  std::size_t board_bytes() const { return sizeof(BoardEntry) * static_cast<std::size_t>(size_); }

  [[noreturn]] void be_rank(int rank, UniqueFd socket, const std::function<void(Rank&)>& function) {
    Rank::State state;
    state.rank = rank;
    state.size = size_;
    state.folder = folder_;
    state.socket = socket.get();
    state.board = board_;
    state.looks_for_leaks = rank == launch_ % size_;
    for (auto& sibling : children_) sibling.socket.reset();
    renew_libtorchs_threads();  // tests in this process may have set their number
    if (!state.reader.read_some(state.socket)) ::_exit(1);
    state.reader.next();
    Rank self(state);
    run_child(state, self, function);
  }

  void hear(int rank) {
    Child& child = children_[rank];
    if (!child.reader.read_some(child.socket.get())) child.silent = true;
    while (auto message = child.reader.next()) take(rank, *message);
  }

  void take(int rank, const Message& message) {
    switch (message.type) {
      case MessageType::failure:
        ADD_FAILURE_AT(message.name.c_str(), message.number)
            << name_of(rank) << ": " << message.text;
        break;
      case MessageType::cue:
        signal_on(rank, message.name);
        for (auto& child : children_) {
          if (!child.ended) send_message(child.socket.get(), message);
        }
        break;
      case MessageType::result:
        outcomes_[rank].result = message.text;
        break;
      case MessageType::error:
        outcomes_[rank].error_type = message.name;
        outcomes_[rank].error = message.text;
        outcomes_[rank].lost_rank = message.number;
        break;
      case MessageType::ended:
        children_[rank].said_goodbye = true;
        break;
    }
  }

  void signal_on(int rank, const std::string& cue) {
    for (auto signal = unsent_.begin(); signal != unsent_.end(); ++signal) {
      if (signal->rank != rank || signal->cue != cue) continue;
      children_[rank].signalled = true;
      children_[rank].stopped = signal->signal == SIGSTOP;
      board_[rank].signalled_at = monotonic_nanoseconds();
      ::kill(children_[rank].pid, signal->signal);
      unsent_.erase(signal);
      return;
    }
  }

  void reap(int rank) {
    Child& child = children_[rank];
    if (child.ended || ::waitpid(child.pid, &child.status, WNOHANG) != child.pid) return;
    child.ended = true;
    note_end(rank);
    // What it said last is still in the socket; a grandchild may keep it open, so do not block.
    ::fcntl(child.socket.get(), F_SETFL, O_NONBLOCK);
    while (!child.silent) hear(rank);
  }

  void note_end(int rank) {
    const std::int64_t seen = monotonic_nanoseconds();
    const bool first = std::ranges::count(children_, true, &Child::ended) == 1;
    for (int other = 0; first && other < size_; ++other) {
      BoardEntry& entry = board_[other];
      entry.waited = entry.waited_before = waited_for_a_core(entry.pid).count();
    }
    board_[rank].ended_at = seen;
  }

  void end(Child& child) {
    if (child.ended) return;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, &child.status, 0);
    child.ended = true;
  }

  bool only_stopped_ranks_left(const std::vector<int>& ranks) const {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int rank) { return children_[rank].stopped; });
  }

  void give_up() {
    gave_up_ = true;
    std::string report =
        fmt::format("{} ranks did not end within {} ms:", size_, options_.deadline.count());
    for (int rank = 0; rank < size_; ++rank) {
      const Child& child = children_[rank];
      report += fmt::format("\n  {} (pid {}): {}, doing: {}", name_of(rank), child.pid,
                            child.ended ? "ended" : process_state(child.pid), board_[rank].note);
      if (!outcomes_[rank].error.empty()) report += "\n    error: " + outcomes_[rank].error;
    }
    report_failure(report);
  }

  std::string name_of(int rank) const { return fmt::format("rank {} of {}", rank, size_); }

  void fail(int rank, const std::string& text) const {
    report_failure(fmt::format("{} {}", name_of(rank), text));
  }

  void report_failure(const std::string& text) const {
    ADD_FAILURE_AT(where_.file_name(), static_cast<int>(where_.line())) << text;
  }

  int size_;
  LaunchOptions options_;
  std::source_location where_;
  Deadline deadline_;
  std::string folder_;
  BoardEntry* board_ = nullptr;
  std::vector<Child> children_;
  std::vector<SignalOnCue> unsent_;
  std::vector<RankOutcome> outcomes_;
  bool gave_up_ = false;
  // One rank of each launch looks for leaks, in turn: that takes as long as most tests.
  const int launch_ = launches_++;
  inline static int launches_ = 0;
};

std::vector<RankOutcome> run_ranks(int size, const std::function<void(Rank&)>& function,
                                   const LaunchOptions& options, std::source_location where) {
  RankLauncher launcher(size, options, where);
  launcher.start(function);
  launcher.listen();
  return launcher.judge();
}

}  // namespace lockstep::testing
