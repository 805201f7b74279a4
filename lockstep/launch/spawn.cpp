// SPDX-License-Identifier: BSD-3-Clause
// Starts the ranks of a call by fork or by running the program again, collects their results, and
// repeats the outcomes of earlier calls in ranks that run the program again.
#include "lockstep/launch/spawn.h"

#include <algorithm>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/packed_error.h"
#include "lockstep/core/packing.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/exit_status.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/launch/stack_trace.h"
#include "lockstep/launch/start_method.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep::spawn_detail {
namespace {

using Body = std::function<std::string(int)>;
using OnWarning = std::function<void(const std::string&)>;

// The results of one call, by rank.
using SpawnResults = std::vector<std::string>;

std::string result_key(int rank) {
  return fmt::format("lockstep/spawn/result/{}", rank);
}

std::string arrival_key() {
  return "lockstep/spawn/arrived/";
}

AgentOptions agent_options(int ranks, const SpawnOptions& options, const OnWarning& on_warning) {
  AgentOptions agent;
  agent.ranks = ranks;
  agent.threads = options.threads;
  if (!agent.threads && !environment("OMP_NUM_THREADS")) {
    agent.threads = std::max(1, available_cores() / std::max(1, ranks));
  }
  agent.prefix = options.prefix;
  agent.on_line = options.on_line;
  agent.status = options.status;
  agent.on_warning = on_warning;
  agent.elastic = options.elastic;
  agent.log_dir = options.log_dir;
  agent.stop_grace = options.stop_grace;
  agent.interrupt_grace = options.interrupt_grace;
  return agent;
}

Arrival arrival(const SpawnOptions& options) {
  // The ranks share the cores that this process had for itself.
  const auto span =
      options.start_timeout.value_or(std::chrono::minutes(1) + 10 * time_since_load());
  return {
      .key = arrival_key(),
      .span = span,
      .late = fmt::format("it did not come to this call within {:.1f} s of its start; with "
                          "StartMethod::spawn it runs main again: find what it waits for before "
                          "this call, or raise start_timeout",
                          span.count() / 1000.0),
      .never =
          "it ended with exit code 0 and did not come to this call; with "
          "StartMethod::spawn it runs main again, which must come to the same calls of "
          "spawn in each rank"};
}

StartMethod choose(StartMethod asked, const std::string& call) {
  if (asked == StartMethod::automatic && !may_fork() && why_no_rerun().empty()) {
    asked = StartMethod::spawn;
  }
  if (asked != StartMethod::spawn) {
    require_may_fork(call);
    return StartMethod::fork;
  }
  if (const std::string why_not = why_no_rerun(); !why_not.empty()) {
    throw UsageError({.operation = call},
                     fmt::format("ranks cannot run this program again: {}", why_not),
                     "call spawn in main, or use StartMethod::fork before anything uses libtorch");
  }
  return StartMethod::spawn;
}

// This process's variables that are not in `before`.
EnvironmentVariables added_to(const std::vector<std::string>& before) {
  EnvironmentVariables added;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (std::ranges::find(before, text) != before.end()) continue;
    const auto end = text.find('=');
    added.emplace_back(text.substr(0, end), text.substr(end + 1));
  }
  return added;
}

std::vector<std::string> all_variables() {
  std::vector<std::string> all;
  for (char** variable = ::environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  return all;
}

void check_elastic_options(const ElasticOptions& elastic, int ranks, const std::string& call) {
  const ErrorContext context{.operation = call};
  if (environment("LOCKSTEP_ELASTIC")) {
    throw UsageError(context,
                     "this process is a rank of an elastic job, and cannot have one of its own",
                     "leave out SpawnOptions::elastic here, or in the outer job");
  }
  constexpr int kMost = ElasticBoard::kMostMembers;
  if (elastic.least < 1 || elastic.least > ranks || ranks > kMost || elastic.most > kMost) {
    throw UsageError(
        context,
        fmt::format("elastic.least is {} and elastic.most {}", elastic.least, elastic.most),
        fmt::format("the least number of ranks is from 1 to the {} of this call, and the greatest "
                    "one at most {}",
                    ranks, kMost));
  }
  if (elastic.replacements < 0 || elastic.hang_timeout.count() < 0) {
    throw UsageError(context,
                     fmt::format("elastic.replacements is {} and elastic.hang_timeout {} ms",
                                 elastic.replacements, elastic.hang_timeout.count()),
                     "give 0 or more");
  }
}

// A replacement would make the same mistake.
Body ending_the_job_by_mistakes(const Body& body) {
  return [&body](int rank) {
    try {
      return body(rank);
    } catch (const UsageError& error) {
      throw RankExit{2, without_stack_trace(error.what())};
    }
  };
}

void run_and_store(int rank, const Body& body) {
  LocalStore store(*environment("LOCKSTEP_STORE"));
  const std::string result = body(rank);
  try {
    store.set(result_key(rank), result);
  } catch (const UsageError&) {
    throw UsageError(fmt::format(
        "the function returned {:.1f} MiB, and spawn takes nearly {} MiB from a rank and nearly {} "
        "MiB from all ranks together; save the result to a file and return the file's name, or "
        "return values that all ranks share from rank 0 only",
        static_cast<double>(result.size()) / (1 << 20), store_protocol::kMaxEntry >> 20,
        store_protocol::kMaxStore >> 20));
  }
}

RankBody forked(const AgentOptions& agent, const Body& body) {
  return [&](int rank, const UniqueFd&) {
    enter_rank();
    renew_libtorchs_threads();
    // The libraries are already loaded and do not read the environment again.
    if (agent.threads) limit_threads(*agent.threads);
    keep_freed_memory();
    run_and_store(rank, body);
  };
}

// The message of RankFailed. An exception that leaves the function says why the rank failed; for
// any other end, the rank's last lines may say it.
std::string report(const RankFailure& failure, const std::string& call) {
  std::string text = failure.name.empty()
                         ? fmt::format("{}: rank {} (pid {}) failed first: {}", call, failure.rank,
                                       failure.pid, failure.cause)
                         : fmt::format("{}: the job cannot go on without {} (pid {}): {}", call,
                                       failure.name, failure.pid, failure.cause);
  const bool by_exit =
      failure.signal == 0 && failure.cause == fmt::format("exit code {}", failure.exit_code);
  if (by_exit) {
    text += "; if it caught an exception, let that leave the function, so that this message has it";
  }
  if ((!by_exit && failure.signal == 0) || failure.last_lines.empty()) return text;
  text += "; its last lines:";
  for (const std::string& line : failure.last_lines) text += "\n  " + line;
  return text;
}

// The ranks that an elastic job had lost before, a line each.
std::string losses_in_words(const std::vector<std::string>& losses) {
  constexpr std::size_t kMostLines = 10;
  if (losses.empty()) return "";
  std::string text = "\nbefore that:";
  for (std::size_t i = 0; i < std::min(losses.size(), kMostLines); ++i) text += "\n  " + losses[i];
  if (losses.size() > kMostLines) {
    text += fmt::format("\n  and {} more were lost", losses.size() - kMostLines);
  }
  return text;
}

SpawnResults run_ranks(const std::string& call, const AgentOptions& agent, const RankBody& body) {
  AgentResult result = run_agent(agent, body);
  if (result.signal != 0) {
    ::raise(result.signal);
    throw Error({.operation = call}, fmt::format("stopped by {}", signal_words(result.signal)));
  }
  if (result.failure) {
    const std::string message = report(*result.failure, call) + losses_in_words(result.losses);
    throw RankFailed(std::move(*result.failure), message);
  }
  if (!result.output_error.empty()) {
    throw BackendError({.operation = call}, result.output_error + "; the ranks ran to their end");
  }
  SpawnResults results;
  for (const int rank : result.finished) {
    const auto found = result.store.find(result_key(rank));
    if (found == result.store.end()) {
      throw Error({.operation = call},
                  fmt::format("rank {} ended with exit code 0 before its function returned", rank),
                  "does it call exit()?");
    }
    results.push_back(std::move(found->second));
  }
  return results;
}

// The outcomes of this program's calls so far, in order, kept until it ends. A rank that runs the
// program again also makes the calls before its own, and each ends as it did in its parent.
class SpawnOutcomes {
 public:
  // Makes a call, records its result or exception, and returns or rethrows that.
  SpawnResults remember(const std::string& call, const std::function<SpawnResults()>& make);
  const std::string& packed() const { return packed_; }

 private:
  std::string packed_;
};

// The outcomes that the parent process recorded.
class EarlierOutcomes {
 public:
  explicit EarlierOutcomes(std::string_view packed) : packed_(packed) {}
  // Returns the result or throws the exception of the parent's next call. UsageError if that was a
  // different call.
  SpawnResults next(const std::string& call);

 private:
  Unpacking packed_;
};

enum class Outcome { returned, rank_failed, failed };

std::string pack_failure(const RankFailed& error) {
  const RankFailure& failure = error.failure();
  return pack(error.what(), failure.rank, failure.pid, failure.exit_code, failure.signal,
              failure.cause, failure.last_lines, failure.name);
}

RankFailed unpack_failure(std::string_view packed) {
  std::string message;
  RankFailure failure{};
  unpack(packed, message, failure.rank, failure.pid, failure.exit_code, failure.signal,
         failure.cause, failure.last_lines, failure.name);
  return {std::move(failure), message};
}

// A rank that runs the program again makes the call `here` where its parent made `in_parent`.
[[noreturn]] void throw_other_call(const std::string& here, const std::string& in_parent) {
  throw UsageError(ErrorDetails{
      .cause = fmt::format("a rank that runs the program again calls {} where its parent called {}",
                           here, in_parent),
      .remedy = "what the program does before a call of spawn must be the same in each rank"});
}

SpawnResults SpawnOutcomes::remember(const std::string& call,
                                     const std::function<SpawnResults()>& make) {
  const auto add = [&](Outcome outcome, std::string_view details) {
    packed_ += pack(call, outcome, details);
  };
  try {
    SpawnResults results = make();
    add(Outcome::returned, join(results));
    return results;
  } catch (const RankFailed& error) {
    add(Outcome::rank_failed, pack_failure(error));
    throw;
  } catch (const std::exception& error) {
    add(Outcome::failed, pack_error(error));
    throw;
  }
}

SpawnResults EarlierOutcomes::next(const std::string& call) {
  std::string in_parent;
  Outcome outcome{};
  std::string details;
  packed_.read_all(in_parent, outcome, details);
  if (call != in_parent) throw_other_call(call, in_parent);
  switch (outcome) {
    case Outcome::returned:
      return split(details);
    case Outcome::rank_failed:
      throw unpack_failure(details);
    case Outcome::failed:
      break;
  }
  std::rethrow_exception(unpack_error(details));
}

// `number` is this call's index among the program's calls of spawn.
RankBody rerunning(const AgentOptions& agent, const std::string& which, int number,
                   const SpawnOutcomes& outcomes) {
  return [&, number, before = all_variables(), cores = allowed_cores()](
             int rank, const UniqueFd& last_words) {
    const RankStart start{.call = number,
                          .which = which,
                          .rank = rank,
                          .variables = added_to(before),
                          .cores = allowed_cores(),
                          .threads = agent.threads,
                          .earlier = outcomes.packed()};
    // Until the call, the program must find the cores that its parent found.
    pin_to_cores(cores);
    rerun_program(start, last_words);
  };
}

// The calls of spawn that this process has made.
struct Calls {
  int made = 0;
  SpawnOutcomes outcomes{};
  std::optional<EarlierOutcomes> earlier{};
};

Calls& calls() {
  static Calls calls;
  return calls;
}

}  // namespace

std::string join(const std::vector<std::string>& texts) {
  return pack(texts);
}

std::vector<std::string> split(std::string_view joined) {
  std::vector<std::string> texts;
  unpack(joined, texts);
  return texts;
}

void refuse_bytes(std::size_t bytes, std::string_view expected) {
  throw BackendError(
      {.operation = "spawn"},
      fmt::format("a rank's result has {} bytes, and its type needs {}", bytes, expected),
      "was the program replaced while it ran?");
}

std::vector<std::string> run(int ranks, const Body& function_of_ranks,
                             const std::type_info& function, const SpawnOptions& options,
                             const OnWarning& on_warning) {
  const std::string call = fmt::format("spawn({})", ranks);
  const Body body =
      options.elastic ? ending_the_job_by_mistakes(function_of_ranks) : function_of_ranks;
  const std::string which = fmt::format("{} of {}", call, function.name());
  Calls& known = calls();
  const int number = known.made++;
  if (const RankStart* start = pending_start()) {
    if (!known.earlier) known.earlier.emplace(start->earlier);
    if (number < start->call) return known.earlier->next(which);
    end_as_rank([&] {
      LocalStore(*environment("LOCKSTEP_STORE"))
          .set(arrival_key() + std::to_string(start->rank), "");
      if (which != start->which) throw_other_call(which, start->which);
      run_and_store(start->rank, body);
    });
  }
  return known.outcomes.remember(which, [&] {
    if (options.elastic) check_elastic_options(*options.elastic, ranks, call);
    AgentOptions agent = agent_options(ranks, options, on_warning);
    if (choose(options.start_method, call) == StartMethod::fork) {
      return run_ranks(call, agent, forked(agent, body));
    }
    agent.arrival = arrival(options);
    return run_ranks(call, agent, rerunning(agent, which, number, known.outcomes));
  });
}

}  // namespace lockstep::spawn_detail

namespace lockstep {

bool is_rank() {
  return in_rank() || pending_start() != nullptr;
}

}  // namespace lockstep
