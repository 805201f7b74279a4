// SPDX-License-Identifier: BSD-3-Clause
// Writes the number of steps into the launcher's store.
#include "lockstep/rendezvous/reported_steps.h"

#include <limits>
#include <string>

#include "lockstep/core/environment.h"
#include "lockstep/core/number.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kReportInterval{1};
// A stopped launcher must not delay training for longer.
constexpr std::chrono::milliseconds kPatienceForSteps{1000};

}  // namespace

std::optional<std::int64_t> decode_steps(std::string_view text) {
  return parse_number(text, Range<std::int64_t>{0, std::numeric_limits<std::int64_t>::max()});
}

void StepReports::note(std::int64_t steps) noexcept try {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kReportInterval;
  const auto launcher = environment("LOCKSTEP_LAUNCHER");
  if (!launcher) return;
  LocalStore(*launcher, {.patience = kPatienceForSteps}).set(kStepsKey, std::to_string(steps));
} catch (...) {
  // The report lacks the number.
}

}  // namespace lockstep
