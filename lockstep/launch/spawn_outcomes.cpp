// SPDX-License-Identifier: BSD-3-Clause
// Packs results and exceptions into text, and unpacks them in a rank.
#include "lockstep/launch/spawn_outcomes.h"

#include <fmt/format.h>

#include "lockstep/launch/spawn.h"

namespace lockstep {
namespace {

constexpr const char* kReturned = "returned";
constexpr const char* kRankFailed = "RankFailed";
constexpr const char* kUsageError = "UsageError";
constexpr const char* kBackendError = "BackendError";
constexpr const char* kError = "Error";

std::string pack_failure(const RankFailed& error) {
  const RankFailure& failure = error.failure();
  std::string packed;
  pack(packed, error.what());
  pack(packed, failure.rank);
  pack(packed, failure.pid);
  pack(packed, failure.exit_code);
  pack(packed, failure.signal);
  pack(packed, failure.cause);
  for (const std::string& line : failure.last_lines) pack(packed, line);
  return packed;
}

RankFailed unpack_failure(Unpacking packed) {
  const std::string message = packed.text();
  RankFailure failure{};
  failure.rank = packed.number();
  failure.pid = packed.number();
  failure.exit_code = packed.number();
  failure.signal = packed.number();
  failure.cause = packed.text();
  while (!packed.done()) failure.last_lines.push_back(packed.text());
  return {std::move(failure), message};
}

}  // namespace

SpawnResults SpawnOutcomes::remember(const std::string& call,
                                     const std::function<SpawnResults()>& make) {
  const auto add = [&](const char* kind, std::string_view outcome) {
    pack(packed_, call);
    pack(packed_, kind);
    pack(packed_, outcome);
  };
  try {
    SpawnResults results = make();
    add(kReturned, spawn_detail::join(results));
    return results;
  } catch (const RankFailed& error) {
    add(kRankFailed, pack_failure(error));
    throw;
  } catch (const UsageError& error) {
    add(kUsageError, error.what());
    throw;
  } catch (const BackendError& error) {
    add(kBackendError, error.what());
    throw;
  } catch (const std::exception& error) {
    add(kError, error.what());
    throw;
  }
}

SpawnResults EarlierOutcomes::next(const std::string& call) {
  const std::string in_parent = packed_.text();
  const std::string kind = packed_.text();
  const std::string outcome = packed_.text();
  if (call != in_parent) throw_other_call(call, in_parent);
  if (kind == kReturned) return spawn_detail::split(outcome);
  if (kind == kRankFailed) throw unpack_failure(Unpacking(outcome));
  if (kind == kUsageError) throw UsageError(outcome);
  if (kind == kBackendError) throw BackendError(outcome);
  throw Error(outcome);
}

void throw_other_call(const std::string& here, const std::string& in_parent) {
  throw UsageError(
      fmt::format("a rank that was started anew calls {} where its parent called {}; what the "
                  "program does before a call of spawn must be the same in each rank",
                  here, in_parent));
}

}  // namespace lockstep
