// SPDX-License-Identifier: BSD-3-Clause
// Picks the failure that counts among the machines', and puts attempts in words.
#include "lockstep/launch/attempt_end.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/launch/exit_status.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackOff{1000};
constexpr milliseconds kLongestBackOff{30'000};
// An attempt that lasted this long made progress: it is no part of a crash loop.
constexpr milliseconds kLongAttempt{60'000};

// The smaller, the more the end says about the cause.
int order_of(const AttemptEnd& end) {
  if (end.failure && end.failure->pid != 0) return 0;
  if (!end.fault.empty()) return 1;
  return end.failure ? 2 : 3;
}

}  // namespace

AttemptEnd whole_end(const std::vector<AttemptEnd>& machines) {
  AttemptEnd whole = *std::ranges::min_element(machines, {}, order_of);
  for (const AttemptEnd& end : machines) {
    if (whole.exit_code == 0) whole.exit_code = end.exit_code;
    if (end.signal != 0 && !whole.failed()) {
      whole.exit_code = end.exit_code;
      whole.signal = end.signal;
    }
    if (whole.why_last.empty()) whole.why_last = end.why_last;
    whole.steps = std::max(whole.steps, end.steps);
    whole.duration = std::max(whole.duration, end.duration);
  }
  return whole;
}

std::string why_no_restart(const AttemptEnd& end, int max_restarts) {
  if (!end.why_last.empty()) return end.why_last;
  if (!end.failed()) return "no rank failed";
  if (end.failure && end.failure->signal == 0 && wrong_command(end.failure->exit_code)) {
    return fmt::format("exit code {} says that the command is wrong, which a restart repeats",
                       end.failure->exit_code);
  }
  if (end.attempt >= max_restarts) return fmt::format("--max-restarts {} is reached", max_restarts);
  return "";
}

milliseconds back_off(const std::vector<milliseconds>& durations) {
  milliseconds wait = kFirstBackOff;
  for (auto last = durations.rbegin() + 1; last != durations.rend(); ++last) {
    if (*(last - 1) >= kLongAttempt || *last >= kLongAttempt) break;
    wait = std::min(2 * wait, kLongestBackOff);
  }
  return wait;
}

std::string failure_in_words(const AttemptEnd& end, int ranks) {
  if (!end.failure) return end.fault;
  const RankFailure& failure = *end.failure;
  std::string where = ", on another machine,";
  if (failure.pid != 0) {
    where = end.machine ? fmt::format(" (pid {} on machine {})", failure.pid, *end.machine)
                        : fmt::format(" (pid {})", failure.pid);
  }
  const std::string name =
      failure.name.empty() ? fmt::format("rank {} of {}", failure.rank, ranks) : failure.name;
  return fmt::format("{}{} failed first: {}", name, where, failure.cause);
}

std::string last_lines_in_words(const RankFailure& failure) {
  if (failure.last_lines.empty()) return "";
  const std::string name =
      failure.name.empty() ? fmt::format("rank {}", failure.rank) : failure.name;
  std::string text = fmt::format("the last lines of {}:\n", name);
  for (const std::string& line : failure.last_lines) text += fmt::format("  {}\n", line);
  return text;
}

std::string summary(const std::vector<AttemptEnd>& attempts, int ranks, const std::string& why) {
  const AttemptEnd& last = attempts.back();
  std::string text =
      attempts.size() == 1
          ? fmt::format("{}\nnot restarted, since {}\n", failure_in_words(last, ranks), why)
          : fmt::format("gave up after {} attempts, since {}:\n", attempts.size(), why);
  for (const AttemptEnd& end : attempts) {
    if (attempts.size() == 1) break;
    const std::string steps = end.steps ? fmt::format(", step {}", *end.steps) : "";
    text += fmt::format("  attempt {}: {:.1f} s{}: {}\n", end.attempt,
                        static_cast<double>(end.duration.count()) / 1000.0, steps,
                        failure_in_words(end, ranks));
  }
  return last.failure ? text + last_lines_in_words(*last.failure) : text;
}

}  // namespace lockstep
