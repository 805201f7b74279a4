// SPDX-License-Identifier: BSD-3-Clause
// The launch's event loop: signals, the store, deadlines and the ranks' ends.
#include "lockstep/launch/rank_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <stdlib.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/launch/cluster_launch.h"
#include "lockstep/launch/elastic_launch.h"
#include "lockstep/launch/resize.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// A killed process that is still there hangs in the kernel.
constexpr milliseconds kKillEffectTimeout{5000};
// How long to wait before retrying clients of the store for which no descriptor was free.
constexpr milliseconds kStarvedWait{100};
// How often to continue a keeper that a signal has stopped.
constexpr milliseconds kKeeperCheckInterval{1000};
// GNU timeout signals its child and then its whole group: that is one request, not two.
constexpr milliseconds kRepeatedSignalWindow{100};

}  // namespace

RankWatch::RankWatch(const AgentOptions& options, const RankBody& body, SignalWatch& signals,
                     OtherAgents* others, int first_rank, std::vector<std::string>& warnings)
    : options_(options),
      body_(body),
      first_rank_(first_rank),
      cores_(options.ranks, threads_per_rank(options.ranks, options.threads)),
      signals_(signals),
      others_(others),
      master_port_(free_port()),
      output_(options, first_rank_, warnings),
      ranks_(first_rank_, options.end_orphans) {
  if (options.arrival) arrivals_.emplace(*options.arrival, options.ranks, ranks_, store_);
}

RankWatch::RankWatch(const AgentOptions& options, const RankBody& body, SignalWatch& signals,
                     OtherAgents* others, std::vector<std::string>& warnings)
    : RankWatch(options, body, signals, others,
                options.node ? options.node->number * options.ranks : 0, warnings) {
  if (!options.elastic) return;
  elastic_ = std::make_unique<ElasticLaunch>(*options.elastic, options.ranks, store_, ranks_);
}

RankWatch::RankWatch(const AgentOptions& options, const RankBody& body, SignalWatch& signals,
                     EtcdMembership& membership, const std::vector<int>& members,
                     std::vector<std::string>& warnings)
    : RankWatch(options, body, signals, nullptr, members.front(), warnings) {
  elastic_ = std::make_unique<ClusterLaunch>(*options.elastic, *options.cluster, members,
                                             membership, store_, ranks_);
}

RankWatch::~RankWatch() {
  if (!ranks_.has_keeper() || !output_.shows_status()) return;
  output_.hide_status();
  output_.write_some();
}

AgentResult RankWatch::run() {
  start();
  while (ranks_.running() || (elastic_ && !stopping() && elastic_->expects_ranks())) {
    wait();
    take_signals();
    take_changes();
    store_.serve();
    if (output_.shows_status()) output_.show_status(store_.value(options_.status->key));
    warn_of_starved_store();
    output_.read();
    // When the job is ending already, ranks that save their work may keep writing although the
    // reader has left.
    if (!output_.write_some() && !stopping()) interrupt(SIGPIPE);
    ranks_.take_ends(notices_);
    take_failure();
    take_absence();
    take_order();
    take_deadlines();
  }
  if (stopping()) ranks_.signal(SIGKILL);
  ranks_.end(stopping() ? milliseconds(0) : options_.stop_grace);
  if (elastic_) elastic_->leave();
  output_.drain([this] { write_all_output(); });
  return make_result();
}

void RankWatch::start() {
  SignalsBlocked blocked;
  const auto leave_to_parent = [&] {
    output_.leave_to_parent();
    signals_.leave_to_parent();
    store_.leave_to_parent();
  };
  // Before the keeper leaves the store to this process.
  const bool on_terminal = output_.on_terminal();
  const LaunchFacts facts = facts_of_launch();
  // Their function may use any file that this process has opened.
  const bool newcomers_are_forks = elastic_ && options_.program.empty();
  const auto body = [&](const PlacedRank& start, const UniqueFd& last_words) {
    signals_.restore();
    blocked.restore();
    // Ranks write to a pseudo-terminal even if their output goes to a file, where colours are
    // unwanted.
    if (!on_terminal) ::setenv("TERM", "dumb", 1);
    for (const auto& [name, value] : variables_of(facts, start)) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    cores_.pin(start.place);
    body_(start.rank, last_words);
  };
  ranks_.fork_keeper({.ranks = options_.ranks,
                      .leave_to_parent = leave_to_parent,
                      .body = body,
                      .store_folder = store_.folder(),
                      .keep_descriptors = newcomers_are_forks});
  blocked.restore();
  for (int rank = 0; rank < options_.ranks; ++rank) ranks_.add_started();
  if (elastic_) {
    store_.set(kRunIdKey, facts.run_id);
    elastic_->begin();
  }
  connect_started();
  if (options_.arrival) deadlines_.set(JobDeadline::arrival, options_.arrival->span);
  warn_of_missing_terminal();
}

void RankWatch::connect_started() {
  for (; connected_ < ranks_.all().size(); ++connected_) {
    LocalRanks::Rank& rank = ranks_.all()[connected_];
    RankProcess& started = rank.process;
    const int number = elastic_ ? elastic_->member(started.rank()) : ranks_.job_rank(rank);
    output_.connect(started.rank(), number, started.take_output(), started.take_error_output());
  }
}

LaunchFacts RankWatch::facts_of_launch() const {
  const std::string& run_id = options_.attempt.run_id;
  return {.ranks = options_.ranks,
          .master_port = master_port_,
          .run_id =
              run_id.empty() ? std::filesystem::path(store_.folder()).filename().string() : run_id,
          .restart_count = options_.attempt.number,
          .max_restarts = options_.attempt.max_restarts,
          .store = store_.path(),
          .node = options_.node};
}

EnvironmentVariables RankWatch::variables_of(const LaunchFacts& facts,
                                             const PlacedRank& start) const {
  EnvironmentVariables variables = rank_environment(facts, start.rank);
  const auto add = [&](const EnvironmentVariables& more) {
    variables.insert(variables.end(), more.begin(), more.end());
  };
  add(thread_environment(options_.ranks, options_.threads));
  if (elastic_) add(elastic_->variables(start));
  add(options_.environment);
  return variables;
}

void RankWatch::warn_of_missing_terminal() {
  for (const LocalRanks::Rank& rank : ranks_.all()) {
    const int error = rank.process.terminal_error();
    if (error == 0) continue;
    return output_.warn(fmt::format(
        "no pseudo-terminal for rank {} ({}); what it prints comes in blocks, and the last one is "
        "lost if a signal ends it",
        ranks_.job_rank(rank), reason_of(error)));
  }
}

void RankWatch::warn_of_starved_store() {
  if (!store_.starved() || std::exchange(starvation_reported_, true)) return;
  output_.warn(
      fmt::format("this launcher cannot answer its ranks: {}; raise ulimit -n", reason_of(EMFILE)));
}

void RankWatch::wait() {
  std::vector<pollfd> entries{{signals_.descriptor(), POLLIN, 0},
                              {store_.descriptor(), POLLIN, 0},
                              {ranks_.descriptor(), POLLIN, 0},
                              {others_ != nullptr ? others_->descriptor() : -1, POLLIN, 0},
                              {elastic_ && !stopping() ? elastic_->descriptor() : -1, POLLIN, 0}};
  output_.add_to(entries);
  milliseconds longest = store_.starved() ? kStarvedWait : kKeeperCheckInterval;
  if (elastic_) longest = elastic_->sleep_time(longest);
  const milliseconds timeout = output_.sleep_time(deadlines_.sleep_time(longest));
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
      ranks_.signal(signal);
  }
}

void RankWatch::suspend() {
  deadlines_.suspend();
  ranks_.signal(SIGTSTP);
  signals_.suspend_process();
}

void RankWatch::resume() {
  deadlines_.resume();
  if (elastic_) elastic_->forget_quiet_time();
  if (arrivals_) arrivals_->forget_time();
  ranks_.signal(SIGCONT);
}

void RankWatch::interrupt(int signal) {
  deadlines_.resume();
  if (deadlines_.is_set(JobDeadline::repeated_signal)) {
    if (deadlines_.passed(JobDeadline::repeated_signal)) kill_all();
    return;
  }
  deadlines_.set(JobDeadline::repeated_signal, kRepeatedSignalWindow);
  told_to_stop_ = true;
  if (others_ != nullptr) others_->say_stopping(signal);
  // Ranks get SIGTERM for SIGPIPE, which is about this process's output.
  const int passed_on = signal == SIGPIPE ? SIGTERM : signal;
  // The survivors of a failure keep the grace that they have.
  if (failure_ || ended_by_others_) return ranks_.signal(passed_on);
  signal_ = signal;
  stop(passed_on, options_.interrupt_grace);
}

void RankWatch::take_changes() {
  try {
    ranks_.take_changes();
    connect_started();
  } catch (const BackendError&) {
    // The keeper was killed, and the ranks with it.
    deadlines_.set(JobDeadline::output, kReaderGrace);
    output_.drain([this] { write_all_output(); });
    throw;
  }
}

void RankWatch::take_failure() {
  if (stopping()) return;
  if (elastic_) return take_elastic_changes();
  if (std::ranges::none_of(ranks_.all(), &LocalRanks::Rank::failed)) return;
  const auto decision = decide_failure(ranks_.ends(store_), first_rank_, options_.node.has_value());
  if (decision->grace.count() > 0) {
    deadlines_.set_earlier(JobDeadline::decision, decision->grace);
    if (!deadlines_.passed(JobDeadline::decision)) return;
  }
  failure_ = decision;
  stop_after_failure();
}

void RankWatch::take_elastic_changes() {
  for (const std::string& line : elastic_->take_changes()) output_.tell(line);
  if (const std::string why = elastic_->failure_elsewhere(); !why.empty()) {
    output_.tell("the job cannot go on: " + why);
    ended_by_others_ = true;
    return stop_after_failure();
  }
  const auto lost = elastic_->fatal();
  if (!lost) return;
  FailureDecision& decision = failure_.emplace();
  decision.culprit.rank = first_rank_ + *lost;
  decision.end = ranks_.ends(store_)[static_cast<std::size_t>(*lost)];
  stop_after_failure();
}

void RankWatch::take_absence() {
  if (!arrivals_ || stopping()) return;
  arrivals_->kill_late_newcomers();
  const bool late = deadlines_.passed(JobDeadline::arrival);
  if (late) deadlines_.clear(JobDeadline::arrival);
  failure_ = arrivals_->find_absent(late);
  if (failure_) stop_after_failure();
}

void RankWatch::take_order() {
  if (others_ == nullptr) return;
  const auto order = others_->order();
  if (!order) return;
  if (*order != 0) told_to_stop_ = true;
  if (stopping()) return;
  if (*order != 0) {
    signal_ = *order;
    return stop(*order == SIGPIPE ? SIGTERM : *order, options_.interrupt_grace);
  }
  // A failure here that has not been decided yet says more than the news of it from elsewhere.
  failure_ = decide_failure(ranks_.ends(store_), first_rank_, options_.node.has_value());
  ended_by_others_ = !failure_;
  stop_after_failure();
}

void RankWatch::take_deadlines() {
  if (elastic_) elastic_->require_place();
  ranks_.look_for_memory_kills();
  if (deadlines_.passed(JobDeadline::kill)) kill_all();
  if (!deadlines_.passed(JobDeadline::kill_effect)) return;
  for (const LocalRanks::Rank& rank : ranks_.all()) {
    if (rank.ended) continue;
    throw BackendError(fmt::format(
        "rank {} (pid {}) did not end within {:.1f} s of SIGKILL: it hangs in the "
        "kernel; look at its state with ps",
        ranks_.job_rank(rank), rank.process.pid(), kKillEffectTimeout.count() / 1000.0));
  }
}

void RankWatch::stop_after_failure() {
  if (others_ != nullptr) others_->say_stopping(0);
  stop(SIGTERM, options_.stop_grace);
}

void RankWatch::stop(int signal, milliseconds grace) {
  deadlines_.resume();
  deadlines_.clear(JobDeadline::decision);
  ranks_.signal(signal);
  // A stopped rank would not react to the signal.
  ranks_.signal(SIGCONT);
  deadlines_.set(JobDeadline::kill, grace);
}

void RankWatch::kill_all() {
  ranks_.signal(SIGKILL);
  deadlines_.clear(JobDeadline::kill);
  if (!deadlines_.is_set(JobDeadline::kill_effect)) {
    deadlines_.set(JobDeadline::kill_effect, kKillEffectTimeout);
  }
}

void RankWatch::write_all_output() {
  while (!output_.all_written()) {
    if (!deadlines_.is_set(JobDeadline::output) && stopping()) {
      deadlines_.set(JobDeadline::output, kReaderGrace);
    }
    const bool limited = deadlines_.is_set(JobDeadline::output);
    if (deadlines_.passed(JobDeadline::output)) return output_.discard();
    std::array<pollfd, 2> entries{
        {{output_.descriptor(), POLLOUT, 0}, {signals_.descriptor(), POLLIN, 0}}};
    const auto timeout = limited ? deadlines_.remaining(JobDeadline::output) : milliseconds(-1);
    ::poll(entries.data(), entries.size(), static_cast<int>(timeout.count()));
    std::optional<int> stopped = signals_.next();
    if (stopped && meaning_of(*stopped) != SignalMeaning::stop) {
      take_signal(*stopped);
      stopped.reset();
    }
    if (!output_.write_some()) stopped = SIGPIPE;
    if (stopped) told_to_stop_ = true;
    if (stopped && !stopping()) signal_ = *stopped;
  }
}

RankFailure RankWatch::describe_failure() {
  const int rank = failure_->culprit.rank - first_rank_;
  if (rank < 0 || rank >= std::ssize(ranks_.all())) return report_of(*failure_, nullptr);
  LocalRanks::Rank& culprit = ranks_.all()[static_cast<std::size_t>(rank)];
  const RankRecord record{.pid = culprit.process.pid(),
                          .end = culprit.end,
                          .last_words = culprit.process.last_words(),
                          .last_lines = output_.last_lines(rank)};
  return report_of(*failure_, &record);
}

// In an elastic job, a rank's number is one of the generation that had it last.
void RankWatch::name_failure(RankFailure& failure) const {
  const int rank = failure.rank - first_rank_;
  const auto last = elastic_->last_rank(rank);
  failure.name = last ? fmt::format("rank {} of {}", last->rank, last->size)
                      : fmt::format("member {}", elastic_->member(rank));
  if (last) failure.rank = last->rank;
}

std::vector<int> RankWatch::finished() const {
  if (elastic_) return elastic_->finishers();
  std::vector<int> finished;
  for (const LocalRanks::Rank& rank : ranks_.all()) {
    if (rank.ended && !rank.failed()) finished.push_back(ranks_.job_rank(rank));
  }
  return finished;
}

AgentResult RankWatch::make_result() {
  AgentResult result;
  result.signal = signal_;
  result.told_to_stop = told_to_stop_;
  result.store = store_.values();
  result.output_error = output_.error();
  if (!result.output_error.empty() || ended_by_others_) result.exit_code = 1;
  result.finished = finished();
  if (elastic_) result.losses = elastic_->losses();
  if (failure_) {
    result.failure = describe_failure();
    if (elastic_) name_failure(*result.failure);
    result.exit_code = std::max(1, result.failure->exit_code);
  }
  if (signal_ != 0) result.exit_code = 128 + signal_;
  return result;
}

}  // namespace lockstep
