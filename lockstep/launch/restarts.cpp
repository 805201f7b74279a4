// SPDX-License-Identifier: BSD-3-Clause
// The loop over attempts, for one machine or several.
#include "lockstep/launch/restarts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/attempt_end.h"
#include "lockstep/launch/keeper_client.h"
#include "lockstep/launch/other_agents.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/rendezvous/reported_steps.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

Hello job_of(const AgentOptions& options, int max_restarts) {
  return {.machine = options.node->number,
          .machines = options.node->nodes,
          .ranks = options.ranks,
          .max_restarts = max_restarts,
          .grace = std::max(options.stop_grace, options.interrupt_grace)};
}

std::optional<std::int64_t> steps_in(const StoreValues& store) {
  const auto found = store.find(kStepsKey);
  return found == store.end() ? std::nullopt : decode_steps(found->second);
}

class Restarts {
 public:
  Restarts(const AgentOptions& options, const RestartOptions& restarts)
      : options_(options),
        restarts_(restarts),
        ranks_(options.ranks * (options.node ? options.node->nodes : 1)),
        log_dir_(options.log_dir),
        start_{.attempt = 0, .master_port = 0, .run_id = "lockstep-" + make_token()} {
    if (!options.node) return;
    others_.emplace(*options.node, restarts.secret, job_of(options, restarts.max_restarts));
  }

  RestartResult run() {
    while (true) {
      std::optional<Verdict> verdict = begin();
      if (!verdict) verdict = settle(run_attempt());
      verdict->end.attempt = start_.attempt;
      if (verdict->end.failed()) ends_.push_back(verdict->end);
      if (verdict->why_final.empty()) verdict = pause();
      if (verdict) return finish(*verdict);
      ++start_.attempt;
    }
  }

 private:
  // Makes the attempt's numbers known; on several machines, once all agents are ready. A verdict if
  // the job is over.
  std::optional<Verdict> begin() {
    if (others_) {
      auto met = others_->meet(start_.attempt, signals_);
      if (auto* verdict = std::get_if<Verdict>(&met)) return *verdict;
      start_ = std::get<Start>(met);
      options_.node->port = start_.master_port;
    }
    options_.attempt = {start_.attempt, restarts_.max_restarts, start_.run_id};
    if (!log_dir_.empty()) {
      options_.log_dir =
          std::filesystem::path(log_dir_) / fmt::format("attempt_{}", start_.attempt);
    }
    return std::nullopt;
  }

  Verdict settle(AttemptEnd own) {
    own.attempt = start_.attempt;
    if (others_) return others_->settle(own, signals_);
    return {own, why_no_restart(own, restarts_.max_restarts)};
  }

  AttemptEnd run_attempt() {
    const auto began = Clock::now();
    AttemptEnd end;
    try {
      AgentResult result = run_agent(options_, signals_, others_ ? &*others_ : nullptr);
      end = {.exit_code = result.exit_code,
             .signal = result.signal,
             .why_last = result.told_to_stop ? kToldToStop : "",
             .failure = std::move(result.failure),
             .steps = steps_in(result.store)};
      output_error_ = std::move(result.output_error);
    } catch (const KeeperLost& error) {
      end = {.exit_code = 1, .fault = error.what()};
    } catch (const std::exception& error) {
      if (others_) others_->leave(error.what());
      throw;
    }
    end.duration = std::chrono::ceil<milliseconds>(Clock::now() - began);
    return end;
  }

  // Waits before a restart. A verdict if a signal tells this process to stop.
  std::optional<Verdict> pause() {
    std::vector<milliseconds> durations;
    for (const AttemptEnd& end : ends_) durations.push_back(end.duration);
    const milliseconds span = back_off(durations);
    if (restarts_.on_restart) {
      restarts_.on_restart(fmt::format("{}; restart {} of {} follows in {} s",
                                       failure_in_words(ends_.back(), ranks_), start_.attempt + 1,
                                       restarts_.max_restarts, span / std::chrono::seconds(1)));
    }
    const Deadline deadline = Deadline::after(span);
    while (true) {
      if (const auto signal = signals_.next_stop()) {
        if (others_) others_->say_stopping(*signal);
        return stopped_by(*signal);
      }
      // The next meeting takes what the other agents say.
      std::array<pollfd, 2> entries{
          {{signals_.descriptor(), POLLIN, 0}, {others_ ? others_->descriptor() : -1, POLLIN, 0}}};
      if (deadline.passed()) return std::nullopt;
      ::poll(entries.data(), entries.size(), static_cast<int>(deadline.remaining().count()));
      if (entries[1].revents != 0) return std::nullopt;
    }
  }

  RestartResult finish(const Verdict& verdict) const {
    const AttemptEnd& end = verdict.end;
    RestartResult result{.exit_code = end.exit_code, .report = {}};
    if (end.signal != 0) {
      result.report = fmt::format("stopped by {}\n", signal_words(end.signal));
    } else if (end.failed()) {
      result.report = summary(ends_, ranks_, verdict.why_final);
    } else if (!output_error_.empty()) {
      result = {.exit_code = 1, .report = output_error_ + "\n"};
    }
    return result;
  }

  AgentOptions options_;
  const RestartOptions& restarts_;
  // Of all machines.
  const int ranks_;
  const std::string log_dir_;
  SignalWatch signals_;
  std::optional<OtherAgents> others_;
  Start start_;
  std::vector<AttemptEnd> ends_;
  std::string output_error_;
};

}  // namespace

RestartResult run_with_restarts(const AgentOptions& options, const RestartOptions& restarts) {
  if (restarts.max_restarts == 0) {
    const AgentResult result = run_agent(options);
    const int machines = options.node ? options.node->nodes : 1;
    return {.exit_code = result.exit_code, .report = report(result, machines * options.ranks)};
  }
  return Restarts(options, restarts).run();
}

}  // namespace lockstep
