// SPDX-License-Identifier: BSD-3-Clause
// The launch's event loop: signals, output, the store, deadlines and the ranks' ends.
#include "lockstep/launch/rank_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// A killed process that is still there hangs in the kernel.
constexpr milliseconds kKillTimeout{5000};
// How long to wait before retrying clients of the store for which no descriptor was free.
constexpr milliseconds kStarvedWait{100};
// How long the keeper may be stopped before it is continued.
constexpr milliseconds kKeeperSleep{1000};
// GNU timeout signals its child and then its whole group: that is one request, not two.
constexpr milliseconds kSameWish{100};
// More than a pipe holds: further output comes from a process that left its group.
constexpr int kReadsAfterEnd = 32;

constexpr std::array kStreams{OutputStream::out, OutputStream::err};

bool is_terminal(OutputStream stream) {
  return ::isatty(stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

}  // namespace

RankWatch::RankWatch(const AgentOptions& options, const RankBody& body,
                     std::vector<std::string>& warnings)
    : options_(options),
      body_(body),
      warnings_(warnings),
      cores_(options.ranks, threads_per_rank(options.ranks, options.threads)),
      master_port_(free_port()),
      shows_status_(options.status && !options.on_line && can_show_status(options.status->stream)) {
  if (options.end_orphans) orphans_.emplace();
  if (!options.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.log_dir, error);
    if (error) {
      throw UsageError(
          fmt::format("cannot make the log folder {}: {}", options.log_dir, error.message()));
    }
  }
}

RankWatch::~RankWatch() {
  if (!keeper_) return;
  if (shows_status_) {
    console_.set_status(options_.status->stream, "");
    console_.write_some();
  }
  signal_all(SIGKILL);
  keeper_.reset();
  // Ends processes that a killed keeper has left to this one.
  if (orphans_) end_children(milliseconds(0));
}

AgentResult RankWatch::run() {
  print_earlier_warnings();
  start();
  while (running()) {
    wait();
    take_signals();
    take_changes();
    store_.serve();
    update_status();
    warn_of_starved_store();
    read_outputs();
    // When the job is ending already, ranks that save their work may keep writing although the
    // reader has left.
    if (!console_.write_some() && result_.signal == 0 && !culprit_) interrupt(SIGPIPE);
    take_ends();
    take_failure();
    take_deadlines();
  }
  end_leftovers();
  drain();
  fill_in_result();
  return std::move(result_);
}

void RankWatch::start() {
  std::vector<RankOutput> outputs;
  std::vector<EnvironmentVariables> variables;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const int of_all = first_rank() + rank;
    outputs.emplace_back(of_all, make_sink(rank),
                         options_.log_dir.empty() ? "" : log_file(options_.log_dir, of_all));
    variables.push_back(variables_of(rank));
  }
  SignalsBlocked blocked;
  const auto body = [&](int rank, const UniqueFd& last_words) {
    for (RankOutput& output : outputs) output.leave_to_parent();
    leave_to_parent();
    blocked.restore();
    cores_.pin(rank);
    for (const auto& [name, value] : variables[static_cast<std::size_t>(rank)]) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    body_(rank, last_words);
  };
  const Keeping keeping{options_.ranks, body, store_.path(), store_.folder()};
  keeper_.emplace(keeping, memory_kills_);
  blocked.restore();
  for (RankOutput& output : outputs) {
    ranks_.push_back({RankProcess(keeper_->next_started()), std::move(output)});
  }
  if (options_.arrival) arrive_by_ = Deadline::after(options_.arrival->span);
  warn_of_late_output();
}

EnvironmentVariables RankWatch::variables_of(int rank) const {
  const LaunchFacts facts{options_.ranks, master_port_,
                          std::filesystem::path(store_.folder()).filename(), store_.path(),
                          options_.node};
  EnvironmentVariables variables = rank_environment(facts, rank);
  const auto add = [&](const EnvironmentVariables& more) {
    variables.insert(variables.end(), more.begin(), more.end());
  };
  add(thread_environment(options_.ranks, options_.threads));
  // Ranks write to a pseudo-terminal even if their output goes to a file, where colours are
  // unwanted.
  if (!on_terminal()) variables.emplace_back("TERM", "dumb");
  add(options_.environment);
  return variables;
}

bool RankWatch::on_terminal() const {
  if (options_.on_line) return false;
  return is_terminal(options_.merged ? options_.merged->stream : OutputStream::out);
}

void RankWatch::warn(const std::string& warning) {
  if (options_.on_warning) return warnings_.push_back(warning);
  console_.add(OutputStream::err, fmt::format("lockstep: warning: {}\n", warning));
}

void RankWatch::print_earlier_warnings() {
  if (options_.on_warning) return;
  for (const std::string& warning : std::exchange(warnings_, {})) warn(warning);
}

void RankWatch::warn_of_late_output() {
  const auto piped = std::ranges::find_if(
      ranks_, [](const Rank& rank) { return rank.process.terminal_error() != 0; });
  if (piped == ranks_.end()) return;
  warn(fmt::format(
      "no pseudo-terminal for rank {} ({}); what it prints comes in blocks, and the "
      "last one is lost if a signal ends it",
      first_rank() + piped->process.rank(), reason_of(piped->process.terminal_error())));
}

void RankWatch::warn_of_starved_store() {
  if (!store_.starved() || std::exchange(starvation_reported_, true)) return;
  warn(
      fmt::format("this launcher cannot answer its ranks: {}; raise ulimit -n", reason_of(EMFILE)));
}

void RankWatch::update_status() {
  if (!shows_status_) return;
  auto value = store_.value(options_.status->key);
  if (!value) return;
  const OutputStream stream = options_.status->stream;
  // The console redraws the text below each line of output: one for a wider terminal would wrap.
  const int columns = terminal_columns(stream);
  if (value == status_ && columns == status_columns_) return;
  status_ = std::move(value);
  status_columns_ = columns;
  console_.set_status(stream, options_.status->render(*status_, columns));
}

void RankWatch::leave_to_parent() {
  signals_.restore();
  store_.leave_to_parent();
}

RankOutput::Sink RankWatch::make_sink(int rank) {
  if (options_.on_line) {
    return [this](const OutputPart& part) { options_.on_line(part.line); };
  }
  if (options_.shown_ranks && std::ranges::count(*options_.shown_ranks, rank) == 0) return {};
  const int of_all = first_rank() + rank;
  std::array<std::string, 2> prefixes;
  for (const OutputStream stream : kStreams) {
    prefixes[stream == OutputStream::err] = options_.merged ? options_.merged->prefix
                                            : !options_.prefix
                                                ? ""
                                                : rank_prefix(of_all, coloured(stream));
  }
  return [this, rank, prefixes](const OutputPart& part) {
    const bool err = part.line.stream == OutputStream::err;
    console_.add_part(options_.merged ? options_.merged->stream : part.line.stream, 2 * rank + err,
                      prefixes[err], part.line.text, part.ends_line);
  };
}

bool RankWatch::running() const {
  return std::ranges::any_of(ranks_, [](const Rank& rank) { return !rank.ended; });
}

void RankWatch::wait() {
  std::vector<pollfd> entries{{signals_.descriptor(), POLLIN, 0},
                              {store_.descriptor(), POLLIN, 0},
                              {keeper_->descriptor(), POLLIN, 0}};
  if (!console_.empty()) entries.push_back({console_.descriptor(), POLLOUT, 0});
  for (Rank& rank : ranks_) {
    if (console_.full()) continue;
    for (const OutputStream stream : kStreams) {
      const UniqueFd& pipe = rank.process.output(stream);
      if (pipe) entries.push_back({pipe.get(), POLLIN, 0});
    }
  }
  milliseconds timeout = store_.starved() ? kStarvedWait : kKeeperSleep;
  for (const auto& deadline : {arrive_by_, decide_at_, kill_at_, give_up_at_}) {
    if (deadline) timeout = std::min(timeout, deadline->remaining());
  }
  for (const Rank& rank : ranks_) {
    if (!shows_unfinished() || console_.full()) break;
    if (const auto due = rank.output.next_unfinished())
      timeout = std::min(timeout, due->remaining());
  }
  ::poll(entries.data(), entries.size(), static_cast<int>(timeout.count()));
}

void RankWatch::take_signals() {
  while (const auto signal = signals_.next()) take_signal(*signal);
}

void RankWatch::take_signal(int signal) {
  switch (meaning_of(signal)) {
    case SignalMeaning::stop:
      return interrupt(signal);
    case SignalMeaning::suspend:
      return suspend();
    case SignalMeaning::resume:
      return resume();
    case SignalMeaning::notice:
      notices_.insert(signal);
      signal_all(signal);
  }
}

void RankWatch::suspend() {
  for (auto* deadline :
       {&arrive_by_, &decide_at_, &repeat_after_, &kill_at_, &give_up_at_, &discard_at_}) {
    if (!*deadline) continue;
    halted_.emplace_back(deadline, (*deadline)->remaining());
    deadline->reset();
  }
  signal_all(SIGTSTP);
  signals_.suspend_process();
}

void RankWatch::resume() {
  restart_deadlines();
  signal_all(SIGCONT);
}

void RankWatch::restart_deadlines() {
  for (const auto& [deadline, left] : std::exchange(halted_, {})) {
    *deadline = Deadline::after(left);
  }
}

void RankWatch::take_changes() {
  keeper_->keep_awake();
  try {
    while (const auto change = keeper_->next_change()) {
      ranks_[static_cast<std::size_t>(change->rank)].process.take(*change);
    }
  } catch (const BackendError&) {
    // The keeper was killed, and the ranks with it.
    discard_at_ = Deadline::after(kReaderGrace);
    drain();
    throw;
  }
}

void RankWatch::interrupt(int signal) {
  restart_deadlines();
  if (repeat_after_) {
    if (repeat_after_->passed()) kill_all();
    return;
  }
  repeat_after_ = Deadline::after(kSameWish);
  // Ranks get SIGTERM for SIGPIPE, which is about this process's output.
  const int passed_on = signal == SIGPIPE ? SIGTERM : signal;
  // The survivors of a failure keep the grace that they have.
  if (culprit_) return signal_all(passed_on);
  result_.signal = signal;
  stop(passed_on, options_.interrupt_grace);
}

bool RankWatch::read_some(Rank& rank, OutputStream stream) {
  UniqueFd& pipe = rank.process.output(stream);
  if (!pipe) return false;
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(pipe.get(), bytes.data(), bytes.size());
  if (count > 0) {
    rank.output.add(stream, {bytes.data(), static_cast<std::size_t>(count)});
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    rank.output.finish(stream);
    pipe.reset();
  }
  warn_of_lost_log(rank);
  return count > 0;
}

void RankWatch::warn_of_lost_log(Rank& rank) {
  if (rank.log_lost || rank.output.log_error().empty()) return;
  rank.log_lost = true;
  if (result_.output_error.empty()) result_.output_error = rank.output.log_error();
  warn(rank.output.log_error() + "; it keeps no more of the rank's output");
}

void RankWatch::read_outputs() {
  for (Rank& rank : ranks_) {
    for (const OutputStream stream : kStreams) {
      if (console_.full()) return;
      if (!read_some(rank, stream) && shows_unfinished()) rank.output.pass_on_unfinished(stream);
    }
  }
}

void RankWatch::take_arrivals() {
  if (!options_.arrival || culprit_ || result_.signal != 0) return;
  const bool too_late = arrive_by_ && arrive_by_->passed();
  if (too_late) arrive_by_.reset();
  const auto missed = [&](const Rank& rank) {
    if (rank.ended ? !rank.process.status()->success() : !too_late) return false;
    return !store_.value(options_.arrival->key + std::to_string(rank.process.rank()));
  };
  const auto first = std::ranges::find_if(ranks_, missed);
  if (first == ranks_.end()) return;
  first->end = first->ended ? options_.arrival->never : options_.arrival->late;
  culprit_ = Culprit{.rank = first_rank() + first->process.rank()};
  culprits_end_ = end_of(*first);
  stop(SIGTERM, options_.stop_grace);
}

void RankWatch::take_deadlines() {
  take_arrivals();
  if (look_for_kills_at_.passed()) {
    memory_kills_.look();
    look_for_kills_at_ = Deadline::after(MemoryKills::kTimeToEnd / 2);
  }
  if (kill_at_ && kill_at_->passed()) kill_all();
  if (!give_up_at_ || !give_up_at_->passed()) return;
  for (const Rank& rank : ranks_) {
    if (rank.ended) continue;
    throw BackendError(fmt::format(
        "rank {} (pid {}) did not end within {:.1f} s of SIGKILL: it hangs in the "
        "kernel; look at its state with ps",
        first_rank() + rank.process.rank(), rank.process.pid(), kKillTimeout.count() / 1000.0));
  }
}

void RankWatch::signal_all(int signal) {
  // Without the keeper, the ranks' pids may belong to other processes.
  if (!keeper_) return;
  for (const Rank& rank : ranks_) rank.process.signal(signal);
}

void RankWatch::stop(int signal, milliseconds grace) {
  restart_deadlines();
  signal_all(signal);
  // A stopped rank would not react to the signal.
  signal_all(SIGCONT);
  kill_at_ = Deadline::after(grace);
}

void RankWatch::kill_all() {
  signal_all(SIGKILL);
  kill_at_.reset();
  if (!give_up_at_) give_up_at_ = Deadline::after(kKillTimeout);
}

void RankWatch::end_leftovers() {
  const bool at_once = culprit_ || result_.signal != 0;
  if (at_once) signal_all(SIGKILL);
  keeper_->end(at_once ? milliseconds(0) : options_.stop_grace);
  keeper_.reset();
}

void RankWatch::drain() {
  if (shows_status_) console_.set_status(options_.status->stream, "");
  for (Rank& rank : ranks_) {
    for (const OutputStream stream : kStreams) {
      for (int i = 0; i < kReadsAfterEnd && read_some(rank, stream); ++i) {
        if (console_.full()) flush_console();
      }
      rank.output.finish(stream);
    }
    warn_of_lost_log(rank);
  }
  flush_console();
}

void RankWatch::flush_console() {
  while (!console_.empty()) {
    if (!discard_at_ && (culprit_ || result_.signal != 0)) {
      discard_at_ = Deadline::after(kReaderGrace);
    }
    if (discard_at_ && discard_at_->passed()) return console_.discard();
    std::array<pollfd, 2> entries{
        {{console_.descriptor(), POLLOUT, 0}, {signals_.descriptor(), POLLIN, 0}}};
    const int timeout = discard_at_ ? static_cast<int>(discard_at_->remaining().count()) : -1;
    ::poll(entries.data(), entries.size(), timeout);
    std::optional<int> stopped = signals_.next();
    if (stopped && meaning_of(*stopped) != SignalMeaning::stop) {
      take_signal(*stopped);
      stopped.reset();
    }
    if (!console_.write_some()) stopped = SIGPIPE;
    if (stopped && !culprit_ && result_.signal == 0) result_.signal = *stopped;
  }
}

void RankWatch::fill_in_result() {
  result_.store = store_.values();
  if (const int error = console_.error(OutputStream::out); error != 0) {
    result_.output_error = fmt::format("cannot write standard output: {}", reason_of(error));
  }
  if (!result_.output_error.empty()) result_.exit_code = 1;
  if (culprit_) {
    result_.failure = failure_of(*culprit_);
    result_.exit_code = std::max(1, result_.failure->exit_code);
  }
  if (result_.signal != 0) result_.exit_code = 128 + result_.signal;
}

}  // namespace lockstep
