// SPDX-License-Identifier: BSD-3-Clause
// Results and errors pass through the launcher's store.
#include "tools/recipes/local_training.h"

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/launch/console.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/rendezvous/store_client.h"
#include "lockstep/train/progress_bar.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

constexpr const char* kRequestVariable = "LOCKSTEP_HAND_OVER";
constexpr const char* kResultKey = "train/result";
constexpr const char* kProgressVariable = "LOCKSTEP_SHOWS_PROGRESS";
constexpr const char* kProgressKey = "train/progress";
// The value between epochs, in which there is nothing to draw.
constexpr const char* kNoProgress = "";

// The launcher answers at once, unless it is affected by the same problem as this error.
constexpr std::chrono::seconds kErrorTimeout{5};
// The only wait for a launcher that is stopped: it delays training once.
constexpr std::chrono::seconds kProgressTimeout{2};

std::string error_key(int rank) {
  return fmt::format("train/error/{}", rank);
}

LocalStore launcher_store(const StoreUser& user = {}) {
  const auto path = environment("LOCKSTEP_STORE");
  if (!path) {
    throw UsageError(
        fmt::format("{} is set, but LOCKSTEP_STORE is not; unset the first, which "
                    "lockstep train sets for its ranks",
                    kRequestVariable));
  }
  return LocalStore(*path, user);
}

[[noreturn]] void throw_again(const std::string& text) {
  const Json error = Json::parse(text).at("error");
  const std::string kind = error.at("kind");
  const std::string message = error.at("message");
  if (kind == "usage") throw UsageError(message);
  if (kind == "peer_lost") throw PeerLost(error.at("rank"), message);
  if (kind == "timeout") throw TimeoutError(message);
  if (kind == "backend") throw BackendError(message);
  if (kind == "not_finite") throw NonFiniteGradient(message);
  if (kind == "out_of_sync") throw OutOfSync(message);
  throw Error(message);
}

std::string without_newline(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

TrainResult run_local_training(const LocalTrainingOptions& options) {
  AgentOptions agent;
  agent.program = options.program;
  agent.ranks = options.ranks;
  agent.threads = options.threads;
  agent.environment = {{kRequestVariable, "1"}};
  agent.merged = options.output;
  const OutputStream stream = options.output.stream;
  if (can_show_status(stream)) {
    agent.environment.emplace_back(kProgressVariable, "1");
    agent.status = StatusLine{.stream = stream,
                              .key = kProgressKey,
                              .render = [&](const std::string& value, int columns) {
                                const auto state = progress_from_text(value);
                                if (!state) return std::string();
                                // The prefix names one of several runs; a narrow terminal
                                // has no room for it.
                                const int prefix = static_cast<int>(options.output.prefix.size());
                                if (columns - prefix < 40)
                                  return progress_bar(*state, columns, coloured(stream));
                                return options.output.prefix +
                                       progress_bar(*state, columns - prefix, coloured(stream));
                              }};
  }
  const AgentResult ended = run_agent(agent);

  if (ended.signal != 0) {
    throw TrainingStopped(ended.signal, without_newline(report(ended, options.ranks)));
  }
  if (ended.failure) {
    const auto error = ended.store.find(error_key(ended.failure->rank));
    if (error != ended.store.end()) throw_again(error->second);
    const std::string message = without_newline(report(ended, options.ranks));
    if (ended.failure->signal != 0) throw PeerLost(ended.failure->rank, message);
    throw Error(message);
  }
  if (!ended.output_error.empty())
    throw BackendError(without_newline(report(ended, options.ranks)));
  const auto result = ended.store.find(kResultKey);
  if (result == ended.store.end()) {
    throw Error(fmt::format("{} has ended without a result; is it a program of another version?",
                            options.program.front()));
  }
  return train_result_from_json(result->second);
}

StepObserver launcher_progress() {
  if (!environment(kProgressVariable) || !started_by_local_training()) return {};
  return [store = std::make_shared<LocalStore>(launcher_store({.patience = kProgressTimeout})),
          meter = ProgressMeter()](const RunSteps& run, const StepSummary& step) mutable {
    if (!store) return;
    // Before the line of the epoch, below which the bar would appear again.
    const bool ends_epoch = run.in_epoch(step) == run.per_epoch;
    const auto state = meter.step(run, step);
    if (!state && !ends_epoch) return;
    try {
      store->set(kProgressKey, ends_epoch ? kNoProgress : to_text(*state));
    } catch (const Error&) {
      store.reset();  // training does not need its bar
    }
  };
}

bool started_by_local_training() {
  return environment(kRequestVariable).has_value();
}

void hand_over(const TrainResult& result) {
  launcher_store().set(kResultKey, to_json(result));
}

void hand_over(const std::exception& error) {
  launcher_store({.patience = kErrorTimeout})
      .set(error_key(environment_int("RANK").value_or(0)), error_to_json(error));
}

}  // namespace lockstep
